//! Tests of the contents of a prepared workspace, and of malicious skill folders.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use abide_domain::settings::ExecutionMode::{self, Auto, Interactive};
use tempfile::TempDir;

use super::*;

const WORDS: &str = "---\nname: review\ndescription: looks twice\n---\nLook twice.\n";

/// A workspace and a skill beside it.
struct WorkspaceFixture {
    home: TempDir,
}

impl WorkspaceFixture {
    fn new() -> Self {
        let place = Self { home: tempfile::tempdir().expect("a folder can be made") };
        fs::create_dir(place.workspace()).expect("it can be written");
        fs::create_dir_all(place.source().join("scripts")).expect("it can be written");
        place.write("skills/review/SKILL.md", WORDS);
        place.write("skills/review/scripts/run.sh", "#!/bin/sh\n");
        place
    }

    fn workspace(&self) -> PathBuf {
        self.home.path().join("workspace")
    }

    fn source(&self) -> PathBuf {
        self.home.path().join("skills/review")
    }

    fn copy(&self) -> PathBuf {
        self.workspace().join(".agents/skills/review")
    }

    fn skill_file(&self) -> String {
        fs::read_to_string(self.copy().join("SKILL.md")).expect("there is a copy")
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.home.path().join(path);
        fs::create_dir_all(path.parent().expect("it lies in the home")).expect("it can be written");
        fs::write(path, text).expect("it can be written");
    }

    fn prepare(&self, run: &str, mode: ExecutionMode) -> Result<(), String> {
        self.prepare_from(&self.source().to_string_lossy(), run, mode)
    }

    fn prepare_from(&self, source: &str, run: &str, mode: ExecutionMode) -> Result<(), String> {
        let skill = RunSkill::new(source, ".agents/skills").expect("it has a name");
        let workspace = self.workspace();
        let workspace = workspace.to_str().expect("it is UTF-8");
        let preparation = WorkspacePreparation { run, workspace, mode, skill: Some(&skill) };
        LocalWorkspaces.prepare(&preparation).map_err(|WorkspaceError(reason)| reason)
    }

    fn nothing_is_staged(&self) -> bool {
        fs::read_dir(self.workspace().join(STAGING)).map_or(true, |mut staged| staged.next().is_none())
    }

    /// Asserts that preparation fails with this message and leaves nothing behind.
    fn refused(&self, words: &str) {
        let reason = self.prepare("run_1", Auto).expect_err("it is refused");
        assert!(reason.contains(words), "{reason}");
        assert!(self.nothing_is_staged());
        assert!(!self.copy().exists());
    }
}

fn patched(mode: ExecutionMode) -> String {
    format!("{WORDS}{}", skill_patch(mode))
}

#[test]
fn a_skill_is_copied_and_only_the_copy_is_patched() {
    let place = WorkspaceFixture::new();
    let script = place.source().join("scripts/run.sh");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o555)).unwrap();
    place.prepare("run_1", Interactive).unwrap();
    assert_eq!(place.skill_file(), patched(Interactive));
    let mode = fs::metadata(place.copy().join("scripts/run.sh")).unwrap().permissions().mode();
    assert_eq!(mode & 0o111, 0o111, "scripts stay executable");
    assert_eq!(fs::read_to_string(place.copy().join(".gitignore")).unwrap(), "*\n");
    assert_eq!(fs::read_to_string(place.source().join("SKILL.md")).unwrap(), WORDS);
    assert_eq!(fs::read_dir(place.source()).unwrap().count(), 2, "the original is as it was");
    assert!(place.nothing_is_staged());
}

#[test]
fn preparing_again_changes_nothing_even_when_the_original_changed_or_went() {
    let place = WorkspaceFixture::new();
    place.prepare("run_1", Auto).unwrap();
    place.write("skills/review/SKILL.md", "Look thrice.");
    place.prepare("run_1", Auto).unwrap();
    fs::remove_dir_all(place.source()).unwrap();
    place.prepare("run_1", Auto).unwrap();
    assert_eq!(place.skill_file(), patched(Auto));
}

#[test]
fn what_a_crash_left_in_the_middle_of_copying_is_done_anew() {
    let place = WorkspaceFixture::new();
    place.write("workspace/.abide/skills/run_1/SKILL.md", "half a fi");
    place.write("workspace/.abide/skills/run_1.old/SKILL.md", "what stood there");
    place.prepare("run_1", Auto).unwrap();
    assert_eq!(place.skill_file(), patched(Auto));
    assert!(place.nothing_is_staged());
}

#[test]
fn runs_that_want_the_same_share_a_copy_and_others_replace_it() {
    let place = WorkspaceFixture::new();
    place.prepare("run_1", Auto).unwrap();
    place.prepare("run_2", Auto).unwrap();
    assert_eq!(fs::read_to_string(place.copy().join(MARK)).unwrap(), "run_1\n");
    place.prepare("run_3", Interactive).unwrap();
    assert_eq!(place.skill_file(), patched(Interactive));
    assert_eq!(fs::read_to_string(place.copy().join(MARK)).unwrap(), "run_3\n");
    place.prepare("run_1", Auto).unwrap();
    assert_eq!(place.skill_file(), patched(Auto));
}

#[test]
fn runs_that_prepare_at_the_same_moment_all_find_a_whole_copy() {
    let place = WorkspaceFixture::new();
    std::thread::scope(|scope| {
        for run in ["run_1", "run_2", "run_3", "run_4"] {
            let place = &place;
            scope.spawn(move || place.prepare(run, Auto).unwrap());
        }
    });
    assert_eq!(place.skill_file(), patched(Auto));
    place.prepare("run_5", Auto).unwrap();
}

#[test]
fn a_copy_that_an_engine_has_spoilt_is_made_anew() {
    let place = WorkspaceFixture::new();
    place.prepare("run_1", Auto).unwrap();
    fs::remove_file(place.copy().join("SKILL.md")).unwrap();
    place.prepare("run_1", Auto).unwrap();
    assert_eq!(place.skill_file(), patched(Auto));
}

#[test]
fn a_skill_of_the_workspaces_own_is_not_overwritten() {
    let place = WorkspaceFixture::new();
    place.write("workspace/.agents/skills/review/SKILL.md", "mine");
    let reason = place.prepare("run_1", Auto).unwrap_err();
    assert!(reason.contains("not overwritten"), "{reason}");
    assert_eq!(place.skill_file(), "mine");
    let itself = place.prepare_from(".agents/skills/review", "run_1", Auto).unwrap_err();
    assert!(itself.contains("without the skill"), "{itself}");
    assert_eq!(place.skill_file(), "mine");
}

#[test]
fn a_link_in_the_place_of_the_copy_is_the_owners() {
    let place = WorkspaceFixture::new();
    fs::create_dir_all(place.workspace().join(".agents/skills")).unwrap();
    symlink(place.source(), place.copy()).unwrap();
    assert!(place.prepare("run_1", Auto).unwrap_err().contains("not overwritten"));
    assert_eq!(fs::read_to_string(place.source().join("SKILL.md")).unwrap(), WORDS);
}

#[test]
fn a_relative_skill_is_meant_from_the_workspace() {
    let place = WorkspaceFixture::new();
    place.prepare_from("../skills/review/", "run_1", Auto).unwrap();
    assert_eq!(place.skill_file(), patched(Auto));
}

#[test]
fn a_missing_folder_a_file_and_a_folder_without_a_skill_are_refused() {
    let place = WorkspaceFixture::new();
    fs::remove_file(place.source().join("SKILL.md")).unwrap();
    place.refused("has no SKILL.md");
    fs::create_dir(place.source().join("SKILL.md")).unwrap();
    place.refused("not a plain file");
    fs::remove_dir_all(place.source()).unwrap();
    place.refused("cannot be found");
    place.write("skills/review", "a file");
    place.refused("is not a folder");
}

#[test]
fn the_folder_that_holds_the_workspace_and_a_copy_of_ours_are_no_skills() {
    let place = WorkspaceFixture::new();
    place.write("SKILL.md", WORDS);
    let home = place.home.path().to_string_lossy().into_owned();
    // A hidden name would be refused earlier.
    let alias = tempfile::tempdir().unwrap();
    let alias = alias.path().join("alias");
    symlink(&home, &alias).unwrap();
    let reason = place.prepare_from(&alias.to_string_lossy(), "run_1", Auto).unwrap_err();
    assert!(reason.contains("holds the workspace itself"), "{reason}");
    place.write("skills/review/.abide-copy", "run_0\n");
    place.refused("is a copy that Abide made");
}

#[test]
fn links_that_leave_the_folder_are_refused_and_others_are_copied_as_links() {
    let place = WorkspaceFixture::new();
    symlink("../SKILL.md", place.source().join("scripts/words.md")).unwrap();
    symlink("scripts", place.source().join("tools")).unwrap();
    symlink("./nowhere", place.source().join("dangling")).unwrap();
    place.prepare("run_1", Auto).unwrap();
    let inside = fs::read_to_string(place.copy().join("tools/words.md")).unwrap();
    assert_eq!(inside, patched(Auto), "it leads to the copy");
    for to in ["/etc/passwd", "../secret", "tools/../../secret", "..", "scripts/../SKILL.md"] {
        let place = WorkspaceFixture::new();
        symlink(to, place.source().join("link")).unwrap();
        place.refused("leaves the folder");
    }
    let place = WorkspaceFixture::new();
    fs::rename(place.source().join("SKILL.md"), place.home.path().join("outside")).unwrap();
    symlink("../../outside", place.source().join("SKILL.md")).unwrap();
    place.refused("not a plain file");
}

#[test]
fn a_pipe_in_the_folder_is_refused_and_not_waited_for() {
    let place = WorkspaceFixture::new();
    make_fifo(&place.source().join("pipe"));
    place.refused("neither a file nor a folder");
}

#[test]
fn huge_folders_are_refused() {
    let place = WorkspaceFixture::new();
    let big = fs::File::create(place.source().join("big")).unwrap();
    big.set_len(MOST.bytes).unwrap();
    place.refused("more than 64 MiB");
    // The folder has three entries, so a limit of two replaces the creation of ten thousand files.
    let (place, most) = (WorkspaceFixture::new(), copy::CopyLimits { entries: 2, ..MOST });
    let target = place.home.path().join("target");
    fs::create_dir(&target).unwrap();
    let (source, into) = (Directory::open(&place.source()).unwrap(), Directory::open(&target).unwrap());
    let trouble = copy::folder(&source, &into, most, &|_, _| {}).unwrap_err();
    assert!(trouble.to_string().contains("more than 2 files"), "{trouble}");
    let written = fs::read_dir(&target).unwrap().count();
    assert_eq!(written, 0, "nothing is written before everything has been looked at");
    let most = copy::CopyLimits { entries: 3, ..MOST };
    copy::folder(&source, &into, most, &|_, _| {}).unwrap();
}

#[test]
fn what_git_keeps_is_not_copied() {
    let place = WorkspaceFixture::new();
    place.write("skills/review/.git/config", "[core]");
    place.write("skills/review/.gitignore", "out\n");
    place.prepare("run_1", Auto).unwrap();
    assert!(!place.copy().join(".git").exists());
    assert_eq!(fs::read_to_string(place.copy().join(".gitignore")).unwrap(), "*\n");
}

/// Drops the capabilities with which root ignores permissions, for the calling thread.
fn obey_permissions() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
    set_capabilities(None, sets).unwrap();
}

#[test]
fn what_cannot_be_read_or_written_is_named() {
    obey_permissions();
    let none = || fs::Permissions::from_mode(0o000);
    let place = WorkspaceFixture::new();
    fs::set_permissions(place.source().join("scripts/run.sh"), none()).unwrap();
    place.refused("scripts/run.sh, which cannot be read");
    let place = WorkspaceFixture::new();
    fs::set_permissions(place.source().join("scripts"), none()).unwrap();
    place.refused("scripts, which cannot be read");
    fs::set_permissions(place.source().join("scripts"), fs::Permissions::from_mode(0o755)).unwrap();
    let place = WorkspaceFixture::new();
    let read_only = fs::Permissions::from_mode(0o555);
    fs::set_permissions(place.workspace(), read_only).unwrap();
    place.refused("cannot make the folder");
    assert_eq!(plain(&place), Ok(()), "without a skill it can be worked in");
    fs::set_permissions(place.workspace(), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_workspace_that_leads_elsewhere_is_not_written_through() {
    let place = WorkspaceFixture::new();
    let elsewhere = place.home.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, place.workspace().join(".agents")).unwrap();
    symlink(&elsewhere, place.workspace().join(".abide")).unwrap();
    let reason = place.prepare("run_1", Auto).unwrap_err();
    assert!(reason.contains("workspace/.agents is a symbolic link"), "{reason}");
    fs::remove_file(place.workspace().join(".agents")).unwrap();
    let reason = place.prepare("run_1", Auto).unwrap_err();
    assert!(reason.contains("workspace/.abide is a symbolic link"), "{reason}");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    // A link within the workspace is refused too: its target can change between a check and its use.
    fs::remove_file(place.workspace().join(".abide")).unwrap();
    fs::remove_dir_all(place.workspace().join(".agents")).unwrap();
    fs::create_dir_all(place.workspace().join("shared/skills")).unwrap();
    symlink("shared", place.workspace().join(".agents")).unwrap();
    let reason = place.prepare("run_1", Auto).unwrap_err();
    assert!(reason.contains("workspace/.agents is a symbolic link"), "{reason}");
    assert_eq!(fs::read_dir(place.workspace().join("shared/skills")).unwrap().count(), 0);
}

/// SECURITY finding 17: with this link a `.gitignore` of `*` appeared at the top of the project.
#[test]
fn a_link_to_the_workspace_itself_is_not_written_through() {
    let place = WorkspaceFixture::new();
    symlink(".", place.workspace().join(".abide")).unwrap();
    plain(&place).unwrap();
    let names: Vec<_> =
        fs::read_dir(place.workspace()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [".abide"]);
}

/// SECURITY finding 17: a process in the workspace swaps the folder of skills for a link while the skill is copied.
#[test]
fn a_folder_that_is_swapped_for_a_link_meanwhile_does_not_lead_out() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let place = WorkspaceFixture::new();
    let outside = place.home.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let stop = AtomicBool::new(false);
    let linger = || (0..200).for_each(|_| std::thread::yield_now());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (folder, aside) = (place.workspace().join(".agents/skills"), place.workspace().join("aside"));
            // Each call may fail, because the folder is being created.
            while !stop.load(Ordering::Relaxed) {
                fs::rename(&folder, &aside).ok();
                symlink(&outside, &folder).ok();
                linger();
                fs::remove_file(&folder).ok();
                fs::rename(&aside, &folder).ok();
                linger();
            }
        });
        for number in 0..1_000 {
            // Succeeds or is refused, depending on the race.
            place.prepare(&format!("run_{number}"), if number % 2 == 0 { Auto } else { Interactive }).ok();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

/// SECURITY finding 6: a mark that is a link to an endless device took all memory, and a FIFO hung the thread.
#[test]
fn a_mark_that_is_a_link_a_fifo_or_too_long_is_no_mark() {
    let place = WorkspaceFixture::new();
    fs::create_dir_all(place.copy()).unwrap();
    place.write("workspace/.agents/skills/review/SKILL.md", "mine");
    let mark = place.copy().join(MARK);
    let not_overwritten = || {
        let reason = place.prepare("run_1", Auto).unwrap_err();
        assert!(reason.contains("not overwritten"), "{reason}");
        assert_eq!(place.skill_file(), "mine");
        fs::remove_file(&mark).unwrap();
    };
    symlink("/dev/zero", &mark).unwrap();
    not_overwritten();
    place.write("elsewhere", "run_1\n");
    symlink(place.home.path().join("elsewhere"), &mark).unwrap();
    not_overwritten();
    make_fifo(&mark);
    not_overwritten();
    fs::File::create(&mark).unwrap().set_len(1 << 40).unwrap();
    not_overwritten();
}

/// SECURITY finding 6: files of a copy that another run made are compared without following links or waiting.
#[test]
fn a_copy_in_which_files_became_links_fifos_or_huge_is_replaced() {
    let spoil: [fn(&Path); 4] = [
        |script| symlink("/dev/zero", script).unwrap(),
        make_fifo,
        |script| fs::File::create(script).unwrap().set_len(1 << 40).unwrap(),
        |script| fs::create_dir(script).unwrap(),
    ];
    for spoil in spoil {
        let place = WorkspaceFixture::new();
        place.prepare("run_1", Auto).unwrap();
        let script = place.copy().join("scripts/run.sh");
        fs::remove_file(&script).unwrap();
        spoil(&script);
        place.prepare("run_2", Auto).unwrap();
        assert_eq!(fs::read_to_string(&script).unwrap(), "#!/bin/sh\n");
        assert!(place.nothing_is_staged());
    }
}

/// SECURITY finding 4 b: the agent nests folders where its next turn stages the skill's copy. A recursive removal
/// overflowed the stack and aborted the daemon at every start.
#[test]
fn deeply_nested_directories_in_the_staging_folder_are_removed() {
    use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
    let place = WorkspaceFixture::new();
    let staging = place.workspace().join(STAGING).join("run_1");
    fs::create_dir_all(&staging).unwrap();
    let mut directory = openat(CWD, &staging, OFlags::PATH, Mode::empty()).unwrap();
    for _ in 0..15_000 {
        mkdirat(&directory, "d", Mode::RWXU).unwrap();
        directory = openat(&directory, "d", OFlags::PATH, Mode::empty()).unwrap();
    }
    let small = std::thread::Builder::new().stack_size(512 << 10);
    std::thread::scope(|scope| {
        small.spawn_scoped(scope, || place.prepare("run_1", Auto).unwrap()).unwrap().join().unwrap();
    });
    assert_eq!(place.skill_file(), patched(Auto));
    assert!(place.nothing_is_staged());
}

/// A skill in a cloned repository that is a link is refused.
#[test]
fn a_skill_in_the_workspace_that_is_a_link_is_refused() {
    let place = WorkspaceFixture::new();
    symlink(place.source(), place.workspace().join("mine")).unwrap();
    let absolute = place.workspace().join("mine");
    for source in ["mine", "./mine", absolute.to_str().unwrap()] {
        let reason = place.prepare_from(source, "run_1", Auto).unwrap_err();
        assert!(reason.contains("workspace/mine is a symbolic link"), "{reason}");
    }
    place.write("workspace/skill/SKILL.md", WORDS);
    place.prepare_from("skill", "run_1", Auto).unwrap();
}

fn make_fifo(path: &Path) {
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
}

fn plain(place: &WorkspaceFixture) -> Result<(), WorkspaceError> {
    let workspace = place.workspace();
    let workspace = workspace.to_str().expect("it is UTF-8");
    LocalWorkspaces.prepare(&WorkspacePreparation { run: "run_1", workspace, mode: Auto, skill: None })
}

#[test]
fn there_is_a_folder_for_artifacts_that_git_overlooks() {
    let place = WorkspaceFixture::new();
    plain(&place).unwrap();
    assert!(place.workspace().join(ARTIFACTS).is_dir());
    assert_eq!(fs::read_to_string(place.workspace().join(".abide/.gitignore")).unwrap(), "*\n");
    place.write("workspace/.abide/.gitignore", "mine\n");
    place.write("workspace/.abide/artifacts/report.md", "done");
    plain(&place).unwrap();
    assert_eq!(fs::read_to_string(place.workspace().join(".abide/.gitignore")).unwrap(), "mine\n");
    assert_eq!(fs::read_to_string(place.workspace().join(".abide/artifacts/report.md")).unwrap(), "done");
}

#[test]
fn a_workspace_where_no_folder_can_be_made_is_no_failure_without_a_skill() {
    let place = WorkspaceFixture::new();
    place.write("workspace/.abide", "a file in the way");
    plain(&place).unwrap();
    let reason = place.prepare("run_1", Auto).unwrap_err();
    assert!(reason.contains("cannot copy the skill into the workspace"), "{reason}");
}

#[test]
fn a_workspace_that_is_missing_or_a_file_is_unusable_and_not_made() {
    let place = WorkspaceFixture::new();
    fs::remove_dir(place.workspace()).unwrap();
    assert!(plain(&place).is_err());
    assert!(!place.workspace().exists());
    place.write("workspace", "a file");
    assert!(plain(&place).is_err());
    assert!(Path::new(&place.workspace()).is_file());
}

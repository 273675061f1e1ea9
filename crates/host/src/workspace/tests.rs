//! Tests of the contents of a prepared workspace, and of malicious skill folders.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use abide_domain::settings::ExecutionMode::{Auto, Interactive};
use tempfile::TempDir;

use super::*;

const SKILL_TEXT: &str = "---\nname: review\ndescription: looks twice\n---\nLook twice.\n";

const ARTIFACTS_FOLDER: &str = ".abide/artifacts";

fn skill_patch(mode: ExecutionMode) -> String {
    format!("\n\nThe mode is {mode:?}.\n")
}

fn local_workspaces(home: PathBuf) -> LocalWorkspaces {
    LocalWorkspaces { home, store_folders: vec![], artifacts_folder: ARTIFACTS_FOLDER, skill_patch }
}

/// A workspace and a skill beside it.
struct WorkspaceFixture {
    home: TempDir,
}

impl WorkspaceFixture {
    fn new() -> Self {
        let fixture = Self { home: tempfile::tempdir().expect("a folder can be made") };
        fs::create_dir(fixture.workspace()).expect("it can be written");
        fs::create_dir_all(fixture.source().join("scripts")).expect("it can be written");
        fixture.write("skills/review/SKILL.md", SKILL_TEXT);
        fixture.write("skills/review/scripts/run.sh", "#!/bin/sh\n");
        fixture
    }

    /// Abide's home is elsewhere.
    fn workspaces(&self) -> LocalWorkspaces {
        local_workspaces(self.home.path().join("abide"))
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
        self.workspaces().prepare(&preparation).map_err(|WorkspaceError(reason)| reason)
    }

    fn nothing_is_staged(&self) -> bool {
        fs::read_dir(self.workspace().join(STAGING)).map_or(true, |mut staged| staged.next().is_none())
    }

    /// Asserts that preparation fails with this message and leaves nothing behind.
    fn assert_refused(&self, words: &str) {
        let reason = self.prepare("run_1", Auto).expect_err("it is refused");
        assert!(reason.contains(words), "{reason}");
        assert!(self.nothing_is_staged());
        assert!(!self.copy().exists());
    }
}

fn patched(mode: ExecutionMode) -> String {
    format!("{SKILL_TEXT}{}", skill_patch(mode))
}

#[test]
fn a_skill_is_copied_and_only_the_copy_is_patched() {
    let fixture = WorkspaceFixture::new();
    let script = fixture.source().join("scripts/run.sh");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o555)).unwrap();
    fixture.prepare("run_1", Interactive).unwrap();
    assert_eq!(fixture.skill_file(), patched(Interactive));
    let mode = fs::metadata(fixture.copy().join("scripts/run.sh")).unwrap().permissions().mode();
    assert_eq!(mode & 0o111, 0o111, "scripts stay executable");
    assert_eq!(fs::read_to_string(fixture.copy().join(".gitignore")).unwrap(), "*\n");
    assert_eq!(fs::read_to_string(fixture.source().join("SKILL.md")).unwrap(), SKILL_TEXT);
    assert_eq!(fs::read_dir(fixture.source()).unwrap().count(), 2, "the original is as it was");
    assert!(fixture.nothing_is_staged());
}

#[test]
fn preparing_again_changes_nothing_even_when_the_original_changed_or_went() {
    let fixture = WorkspaceFixture::new();
    fixture.prepare("run_1", Auto).unwrap();
    fixture.write("skills/review/SKILL.md", "Look thrice.");
    fixture.prepare("run_1", Auto).unwrap();
    fs::remove_dir_all(fixture.source()).unwrap();
    fixture.prepare("run_1", Auto).unwrap();
    assert_eq!(fixture.skill_file(), patched(Auto));
}

#[test]
fn a_copy_interrupted_by_a_crash_is_repeated() {
    let fixture = WorkspaceFixture::new();
    fixture.write("workspace/.abide/skills/run_1/SKILL.md", "half a fi");
    fixture.write("workspace/.abide/skills/run_1.old/SKILL.md", "the earlier text");
    fixture.prepare("run_1", Auto).unwrap();
    assert_eq!(fixture.skill_file(), patched(Auto));
    assert!(fixture.nothing_is_staged());
}

#[test]
fn runs_that_want_the_same_share_a_copy_and_others_replace_it() {
    let fixture = WorkspaceFixture::new();
    fixture.prepare("run_1", Auto).unwrap();
    fixture.prepare("run_2", Auto).unwrap();
    assert_eq!(fs::read_to_string(fixture.copy().join(COPY_MARKER)).unwrap(), "run_1\n");
    fixture.prepare("run_3", Interactive).unwrap();
    assert_eq!(fixture.skill_file(), patched(Interactive));
    assert_eq!(fs::read_to_string(fixture.copy().join(COPY_MARKER)).unwrap(), "run_3\n");
    fixture.prepare("run_1", Auto).unwrap();
    assert_eq!(fixture.skill_file(), patched(Auto));
}

#[test]
fn runs_that_prepare_at_the_same_moment_all_find_a_whole_copy() {
    let fixture = WorkspaceFixture::new();
    std::thread::scope(|scope| {
        for run in ["run_1", "run_2", "run_3", "run_4"] {
            let fixture = &fixture;
            scope.spawn(move || fixture.prepare(run, Auto).unwrap());
        }
    });
    assert_eq!(fixture.skill_file(), patched(Auto));
    fixture.prepare("run_5", Auto).unwrap();
}

#[test]
fn a_damaged_copy_is_replaced() {
    let fixture = WorkspaceFixture::new();
    fixture.prepare("run_1", Auto).unwrap();
    fs::remove_file(fixture.copy().join("SKILL.md")).unwrap();
    fixture.prepare("run_1", Auto).unwrap();
    assert_eq!(fixture.skill_file(), patched(Auto));
}

#[test]
fn a_skill_of_the_workspaces_own_is_not_overwritten() {
    let fixture = WorkspaceFixture::new();
    fixture.write("workspace/.agents/skills/review/SKILL.md", "mine");
    let reason = fixture.prepare("run_1", Auto).unwrap_err();
    assert!(reason.contains("not overwritten"), "{reason}");
    assert_eq!(fixture.skill_file(), "mine");
    let itself = fixture.prepare_from(".agents/skills/review", "run_1", Auto).unwrap_err();
    assert!(itself.contains("without the skill"), "{itself}");
    assert_eq!(fixture.skill_file(), "mine");
}

#[test]
fn a_link_in_the_place_of_the_copy_is_the_owners() {
    let fixture = WorkspaceFixture::new();
    fs::create_dir_all(fixture.workspace().join(".agents/skills")).unwrap();
    symlink(fixture.source(), fixture.copy()).unwrap();
    assert!(fixture.prepare("run_1", Auto).unwrap_err().contains("not overwritten"));
    assert_eq!(fs::read_to_string(fixture.source().join("SKILL.md")).unwrap(), SKILL_TEXT);
}

#[test]
fn a_relative_skill_is_meant_from_the_workspace() {
    let fixture = WorkspaceFixture::new();
    fixture.prepare_from("../skills/review/", "run_1", Auto).unwrap();
    assert_eq!(fixture.skill_file(), patched(Auto));
}

#[test]
fn a_missing_folder_a_file_and_a_folder_without_a_skill_are_refused() {
    let fixture = WorkspaceFixture::new();
    fs::remove_file(fixture.source().join("SKILL.md")).unwrap();
    fixture.assert_refused("has no SKILL.md");
    fs::create_dir(fixture.source().join("SKILL.md")).unwrap();
    fixture.assert_refused("not a plain file");
    fs::remove_dir_all(fixture.source()).unwrap();
    fixture.assert_refused("cannot be found");
    fixture.write("skills/review", "a file");
    fixture.assert_refused("is not a folder");
}

#[test]
fn the_folder_that_holds_the_workspace_and_a_copy_of_ours_are_no_skills() {
    let fixture = WorkspaceFixture::new();
    fixture.write("SKILL.md", SKILL_TEXT);
    let home = fixture.home.path().to_string_lossy().into_owned();
    // A hidden name would be refused earlier.
    let alias = tempfile::tempdir().unwrap();
    let alias = alias.path().join("alias");
    symlink(&home, &alias).unwrap();
    let reason = fixture.prepare_from(&alias.to_string_lossy(), "run_1", Auto).unwrap_err();
    assert!(reason.contains("contains the workspace itself"), "{reason}");
    fixture.write("skills/review/.abide-copy", "run_0\n");
    fixture.assert_refused("is a copy that Abide made");
}

#[test]
fn links_that_leave_the_folder_are_refused_and_others_are_copied_as_links() {
    let fixture = WorkspaceFixture::new();
    symlink("../SKILL.md", fixture.source().join("scripts/words.md")).unwrap();
    symlink("scripts", fixture.source().join("tools")).unwrap();
    symlink("./nowhere", fixture.source().join("dangling")).unwrap();
    fixture.prepare("run_1", Auto).unwrap();
    let inside = fs::read_to_string(fixture.copy().join("tools/words.md")).unwrap();
    assert_eq!(inside, patched(Auto), "it leads to the copy");
    for to in ["/etc/passwd", "../secret", "tools/../../secret", "..", "scripts/../SKILL.md"] {
        let fixture = WorkspaceFixture::new();
        symlink(to, fixture.source().join("link")).unwrap();
        fixture.assert_refused("leaves the folder");
    }
    let fixture = WorkspaceFixture::new();
    fs::rename(fixture.source().join("SKILL.md"), fixture.home.path().join("outside")).unwrap();
    symlink("../../outside", fixture.source().join("SKILL.md")).unwrap();
    fixture.assert_refused("not a plain file");
}

#[test]
fn a_pipe_in_the_folder_is_refused_and_not_waited_for() {
    let fixture = WorkspaceFixture::new();
    make_fifo(&fixture.source().join("pipe"));
    fixture.assert_refused("neither a file nor a folder");
}

#[test]
fn huge_folders_are_refused() {
    let fixture = WorkspaceFixture::new();
    let big = fs::File::create(fixture.source().join("big")).unwrap();
    big.set_len(SKILL_LIMITS.bytes).unwrap();
    fixture.assert_refused("more than 64 MiB");
    // The folder has three entries, so a limit of two replaces the creation of ten thousand files.
    let (fixture, most) = (WorkspaceFixture::new(), copy::CopyLimits { entries: 2, ..SKILL_LIMITS });
    let target = fixture.home.path().join("target");
    fs::create_dir(&target).unwrap();
    let (source, into) = (Directory::open(&fixture.source()).unwrap(), Directory::open(&target).unwrap());
    let error = copy::copy_folder(&source, &into, most, &[], &|_, _| {}).unwrap_err();
    assert!(error.to_string().contains("more than 2 files"), "{error}");
    let written = fs::read_dir(&target).unwrap().count();
    assert_eq!(written, 0, "nothing is written before everything has been looked at");
    let most = copy::CopyLimits { entries: 3, ..SKILL_LIMITS };
    copy::copy_folder(&source, &into, most, &[], &|_, _| {}).unwrap();
}

#[test]
fn the_git_folder_is_not_copied() {
    let fixture = WorkspaceFixture::new();
    fixture.write("skills/review/.git/config", "[core]");
    fixture.write("skills/review/.gitignore", "out\n");
    fixture.prepare("run_1", Auto).unwrap();
    assert!(!fixture.copy().join(".git").exists());
    assert_eq!(fs::read_to_string(fixture.copy().join(".gitignore")).unwrap(), "*\n");
}

/// Drops the capabilities with which root ignores permissions, for the calling thread.
fn drop_permission_override() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
    set_capabilities(None, sets).unwrap();
}

#[test]
fn unreadable_and_unwritable_files_are_named() {
    drop_permission_override();
    let none = || fs::Permissions::from_mode(0o000);
    let fixture = WorkspaceFixture::new();
    fs::set_permissions(fixture.source().join("scripts/run.sh"), none()).unwrap();
    fixture.assert_refused("scripts/run.sh, which cannot be read");
    let fixture = WorkspaceFixture::new();
    fs::set_permissions(fixture.source().join("scripts"), none()).unwrap();
    fixture.assert_refused("scripts, which cannot be read");
    fs::set_permissions(fixture.source().join("scripts"), fs::Permissions::from_mode(0o755)).unwrap();
    let fixture = WorkspaceFixture::new();
    let read_only = fs::Permissions::from_mode(0o555);
    fs::set_permissions(fixture.workspace(), read_only).unwrap();
    fixture.assert_refused("cannot create the folder");
    assert_eq!(prepare_without_skill(&fixture), Ok(()), "without a skill it can be worked in");
    fs::set_permissions(fixture.workspace(), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_workspace_that_leads_elsewhere_is_not_written_through() {
    let fixture = WorkspaceFixture::new();
    let elsewhere = fixture.home.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, fixture.workspace().join(".agents")).unwrap();
    symlink(&elsewhere, fixture.workspace().join(".abide")).unwrap();
    let reason = fixture.prepare("run_1", Auto).unwrap_err();
    assert!(reason.contains("workspace/.agents is a symbolic link"), "{reason}");
    fs::remove_file(fixture.workspace().join(".agents")).unwrap();
    let reason = fixture.prepare("run_1", Auto).unwrap_err();
    assert!(reason.contains("workspace/.abide is a symbolic link"), "{reason}");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    // A link within the workspace is refused too: its target can change between a check and its use.
    fs::remove_file(fixture.workspace().join(".abide")).unwrap();
    fs::remove_dir_all(fixture.workspace().join(".agents")).unwrap();
    fs::create_dir_all(fixture.workspace().join("shared/skills")).unwrap();
    symlink("shared", fixture.workspace().join(".agents")).unwrap();
    let reason = fixture.prepare("run_1", Auto).unwrap_err();
    assert!(reason.contains("workspace/.agents is a symbolic link"), "{reason}");
    assert_eq!(fs::read_dir(fixture.workspace().join("shared/skills")).unwrap().count(), 0);
}

/// SECURITY finding 17: with this link a `.gitignore` of `*` appeared at the top of the project.
#[test]
fn a_link_to_the_workspace_itself_is_not_written_through() {
    let fixture = WorkspaceFixture::new();
    symlink(".", fixture.workspace().join(".abide")).unwrap();
    prepare_without_skill(&fixture).unwrap();
    let names: Vec<_> =
        fs::read_dir(fixture.workspace()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [".abide"]);
}

/// SECURITY finding 17: a process in the workspace swaps the folder of skills for a link while the skill is copied.
#[test]
fn a_folder_that_is_swapped_for_a_link_meanwhile_does_not_lead_out() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let fixture = WorkspaceFixture::new();
    let outside = fixture.home.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let stop = AtomicBool::new(false);
    let linger = || (0..200).for_each(|_| std::thread::yield_now());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (folder, aside) =
                (fixture.workspace().join(".agents/skills"), fixture.workspace().join("aside"));
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
            fixture.prepare(&format!("run_{number}"), if number % 2 == 0 { Auto } else { Interactive }).ok();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

/// SECURITY finding 6: a mark that is a link to an endless device took all memory, and a FIFO hung the thread.
#[test]
fn a_mark_that_is_a_link_a_fifo_or_too_long_is_no_mark() {
    let fixture = WorkspaceFixture::new();
    fs::create_dir_all(fixture.copy()).unwrap();
    fixture.write("workspace/.agents/skills/review/SKILL.md", "mine");
    let mark = fixture.copy().join(COPY_MARKER);
    let not_overwritten = || {
        let reason = fixture.prepare("run_1", Auto).unwrap_err();
        assert!(reason.contains("not overwritten"), "{reason}");
        assert_eq!(fixture.skill_file(), "mine");
        fs::remove_file(&mark).unwrap();
    };
    symlink("/dev/zero", &mark).unwrap();
    not_overwritten();
    fixture.write("elsewhere", "run_1\n");
    symlink(fixture.home.path().join("elsewhere"), &mark).unwrap();
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
        let fixture = WorkspaceFixture::new();
        fixture.prepare("run_1", Auto).unwrap();
        let script = fixture.copy().join("scripts/run.sh");
        fs::remove_file(&script).unwrap();
        spoil(&script);
        fixture.prepare("run_2", Auto).unwrap();
        assert_eq!(fs::read_to_string(&script).unwrap(), "#!/bin/sh\n");
        assert!(fixture.nothing_is_staged());
    }
}

/// SECURITY finding 4 b: the agent nests folders where its next turn stages the skill's copy. A recursive removal
/// overflowed the stack and aborted the daemon at every start.
#[test]
fn deeply_nested_directories_in_the_staging_folder_are_removed() {
    use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
    let fixture = WorkspaceFixture::new();
    let staging = fixture.workspace().join(STAGING).join("run_1");
    fs::create_dir_all(&staging).unwrap();
    let mut directory = openat(CWD, &staging, OFlags::PATH, Mode::empty()).unwrap();
    for _ in 0..15_000 {
        mkdirat(&directory, "d", Mode::RWXU).unwrap();
        directory = openat(&directory, "d", OFlags::PATH, Mode::empty()).unwrap();
    }
    let small = std::thread::Builder::new().stack_size(512 << 10);
    std::thread::scope(|scope| {
        small.spawn_scoped(scope, || fixture.prepare("run_1", Auto).unwrap()).unwrap().join().unwrap();
    });
    assert_eq!(fixture.skill_file(), patched(Auto));
    assert!(fixture.nothing_is_staged());
}

/// A skill in a cloned repository that is a link is refused.
#[test]
fn a_skill_in_the_workspace_that_is_a_link_is_refused() {
    let fixture = WorkspaceFixture::new();
    symlink(fixture.source(), fixture.workspace().join("mine")).unwrap();
    let absolute = fixture.workspace().join("mine");
    for source in ["mine", "./mine", absolute.to_str().unwrap()] {
        let reason = fixture.prepare_from(source, "run_1", Auto).unwrap_err();
        assert!(reason.contains("workspace/mine is a symbolic link"), "{reason}");
    }
    fixture.write("workspace/skill/SKILL.md", SKILL_TEXT);
    fixture.prepare_from("skill", "run_1", Auto).unwrap();
}

fn make_fifo(path: &Path) {
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
}

fn prepare_without_skill(fixture: &WorkspaceFixture) -> Result<(), WorkspaceError> {
    let workspace = fixture.workspace();
    let workspace = workspace.to_str().expect("it is UTF-8");
    let preparation = WorkspacePreparation { run: "run_1", workspace, mode: Auto, skill: None };
    fixture.workspaces().prepare(&preparation)
}

#[test]
fn the_artifacts_folder_is_ignored_by_git() {
    let fixture = WorkspaceFixture::new();
    prepare_without_skill(&fixture).unwrap();
    assert!(fixture.workspace().join(ARTIFACTS_FOLDER).is_dir());
    assert_eq!(fs::read_to_string(fixture.workspace().join(".abide/.gitignore")).unwrap(), "*\n");
    fixture.write("workspace/.abide/.gitignore", "mine\n");
    fixture.write("workspace/.abide/artifacts/report.md", "done");
    prepare_without_skill(&fixture).unwrap();
    assert_eq!(fs::read_to_string(fixture.workspace().join(".abide/.gitignore")).unwrap(), "mine\n");
    assert_eq!(fs::read_to_string(fixture.workspace().join(".abide/artifacts/report.md")).unwrap(), "done");
}

#[test]
fn a_workspace_where_no_folder_can_be_made_is_no_failure_without_a_skill() {
    let fixture = WorkspaceFixture::new();
    fixture.write("workspace/.abide", "a file in the way");
    prepare_without_skill(&fixture).unwrap();
    let reason = fixture.prepare("run_1", Auto).unwrap_err();
    assert!(reason.contains("cannot copy the skill into the workspace"), "{reason}");
}

#[test]
fn a_workspace_that_is_missing_or_a_file_is_unusable_and_not_made() {
    let fixture = WorkspaceFixture::new();
    fs::remove_dir(fixture.workspace()).unwrap();
    assert!(prepare_without_skill(&fixture).is_err());
    assert!(!fixture.workspace().exists());
    fixture.write("workspace", "a file");
    assert!(prepare_without_skill(&fixture).is_err());
    assert!(Path::new(&fixture.workspace()).is_file());
}

/// An agent that can write the directory above a workspace redirects its next turn.
#[test]
fn a_workspace_behind_a_link_is_refused_and_nothing_is_written_there() {
    for replaced in ["workspace", "workspace/above", "workspace/above/work"] {
        let fixture = WorkspaceFixture::new();
        let (outside, aside) = (fixture.home.path().join("outside"), fixture.home.path().join("aside"));
        fs::create_dir_all(fixture.workspace().join("above/work")).unwrap();
        fs::create_dir_all(outside.join("above/work")).unwrap();
        fs::create_dir_all(outside.join("work")).unwrap();
        let workspace = fixture.workspace().join("above/work");
        let preparation = |run| WorkspacePreparation {
            run,
            workspace: workspace.to_str().unwrap(),
            mode: Auto,
            skill: None,
        };
        let workspaces = fixture.workspaces();
        workspaces.prepare(&preparation("run_1")).unwrap();
        let link = fixture.home.path().join(replaced);
        fs::rename(&link, &aside).unwrap();
        symlink(&outside, &link).unwrap();
        // A directory named after the run would be created.
        for run in ["run_1", "work"] {
            let WorkspaceError(reason) = workspaces.prepare(&preparation(run)).unwrap_err();
            let named = format!("{} was replaced by a symbolic link", link.display());
            assert!(reason.contains(&named), "{replaced}: {reason}");
        }
        for folder in ["", "above/work", "work"] {
            assert!(!outside.join(folder).join(".abide").exists(), "{replaced} {folder}");
        }
        fs::remove_file(&link).unwrap();
        fs::rename(&aside, &link).unwrap();
        workspaces.prepare(&preparation("run_1")).unwrap();
    }
}

#[test]
fn a_runs_own_directory_is_not_created_behind_a_link() {
    let fixture = tempfile::tempdir().unwrap();
    let home = fixture.path().join("home");
    let own = home.join("workspaces/run_1");
    let outside = fixture.path().join("outside");
    fs::create_dir_all(&outside).unwrap();
    fs::create_dir_all(&home).unwrap();
    symlink(&outside, home.join("workspaces")).unwrap();
    let workspaces = local_workspaces(home.clone());
    let preparation =
        WorkspacePreparation { run: "run_1", workspace: own.to_str().unwrap(), mode: Auto, skill: None };
    assert!(workspaces.prepare(&preparation).is_err());
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    fs::remove_file(home.join("workspaces")).unwrap();
    workspaces.prepare(&preparation).unwrap();
    assert!(own.join(ARTIFACTS_FOLDER).is_dir());
}

#[test]
fn folders_of_the_home_are_neither_workspaces_nor_skills_and_nothing_is_written_there() {
    let fixture = WorkspaceFixture::new();
    let home = fixture.workspaces().home;
    fixture.write("abide/keepers/SKILL.md", SKILL_TEXT);
    let keepers = home.join("keepers");
    let refused = fixture.workspaces().check(keepers.to_str().unwrap());
    assert!(refused.is_err_and(|WorkspaceError(reason)| reason.contains("one of its own folders")));
    let preparation =
        WorkspacePreparation { run: "run_1", workspace: keepers.to_str().unwrap(), mode: Auto, skill: None };
    assert!(fixture.workspaces().prepare(&preparation).is_err());
    assert!(!keepers.join(".abide").exists());
    let reason = fixture.prepare_from(keepers.to_str().unwrap(), "run_1", Auto).unwrap_err();
    assert!(reason.contains("one of its own folders"), "{reason}");
    assert!(!fixture.copy().exists());
}

/// Issue 14: such a folder was refused only because the home has a socket, which cannot be copied.
#[test]
fn a_folder_above_the_home_is_no_skill() {
    let fixture = WorkspaceFixture::new();
    fixture.write("user/SKILL.md", SKILL_TEXT);
    fixture.write("user/home/token", "secret");
    let user = fixture.home.path().join("user");
    let workspaces = local_workspaces(user.join("home"));
    let skill = RunSkill { source: "../user".to_owned(), copy_path: ".agents/skills/user".to_owned() };
    let workspace = fixture.workspace();
    let preparation = WorkspacePreparation {
        run: "run_1",
        workspace: workspace.to_str().unwrap(),
        mode: Auto,
        skill: Some(&skill),
    };
    for refused in [
        workspaces.check_skill(preparation.workspace, &skill.source),
        workspaces.check_skill(preparation.workspace, user.to_str().unwrap()),
        workspaces.prepare(&preparation),
    ] {
        let WorkspaceError(reason) = refused.unwrap_err();
        assert!(reason.contains("contains Abide's home"), "{reason}");
    }
    assert!(!workspace.join(".agents/skills/user").exists());
    workspaces.check_skill(preparation.workspace, "../skills/review").unwrap();
}

//! Isolation beyond the path of the home: other mounts of the home, a database outside the home, and descriptors of the
//! program that started Abide.

use std::fs;

use abide_host::store_folders;
use abide_ports::{
    engine::IsolationMode,
    processes::{Processes, StartError, StartRequest},
};
use abide_testkit::{daemon::TestHome, skip::skip};

use crate::{IsolationTestHome, SEARCH, bubblewrap, launch};

/// A database outside the home, with its witness.
#[test]
fn the_folder_of_a_database_outside_the_home_is_hidden_and_is_no_workspace() {
    let mut home = IsolationTestHome::new("/usr/bin:/bin");
    let store = tempfile::tempdir().expect("the test machine allows it");
    fs::write(store.path().join("x.db"), "SECRET").expect("the test machine allows it");
    fs::write(store.path().join("x.db-witness"), "SECRET").expect("the test machine allows it");
    fs::create_dir(store.path().join("work")).expect("the test machine allows it");
    let folders = store_folders::of_database(home.path(), &store.path().join("x.db"));
    home.hide_store(folders);
    let text = format!(
        "cat {0}/x.db {0}/x.db-witness; echo more >> {0}/x.db-witness; echo new > {0}/x.db-journal; echo here",
        store.path().display()
    );
    let quiet = format!("({text}) 2>/dev/null");
    for isolation in [IsolationMode::Namespace, IsolationMode::Auto, IsolationMode::Landlock] {
        let (printed, _) = home.script(isolation, &quiet).expect("the test machine allows it");
        assert_eq!(printed, "here\n", "{isolation:?}");
        let workspace = store.path().join("work").to_string_lossy().into_owned();
        let launch = launch(&["true"], vec![]);
        let start = StartRequest {
            spec: &launch,
            workspace: &workspace,
            private_dir: &workspace,
            pass_env: &[],
            isolation,
        };
        let refused = home.keepers.start("run-1", &start);
        assert!(
            matches!(&refused, Err(StartError::IsolationUnavailable(reason)) if reason.contains("database")),
            "{refused:?}"
        );
    }
    let witness = fs::read_to_string(store.path().join("x.db-witness")).expect("the test machine allows it");
    assert_eq!((witness.as_str(), store.path().join("x.db-journal").exists()), ("SECRET", false));
    let (printed, _) = home.script(IsolationMode::Off, &quiet).expect("the test machine allows it");
    assert_eq!(printed, "SECRETSECREThere\n", "without isolation it can be read");
}

#[test]
fn the_daemon_records_the_folder_of_its_database_and_refuses_it_as_workspace() {
    let store = tempfile::tempdir().expect("the test machine allows it");
    let setting = format!("store = \"sqlite:{}/x.db\"\n", store.path().display());
    let home = TestHome::new(env!("CARGO_BIN_EXE_abide")).with_config(&setting);
    let _daemon = home.start();
    let record = fs::read_to_string(home.path().join("store-folders.json")).expect("it is recorded");
    assert_eq!(record, serde_json::json!([store.path()]).to_string());
    let folder = store.path().to_string_lossy();
    let refused = home.run(&["run", "parrot", "say hello", "--workspace", &folder, "--json"]);
    assert!(refused.code != Some(0) && refused.stderr.contains("WORKSPACE_UNUSABLE"), "{refused:?}");
    assert!(!store.path().join(".abide").exists());
    // A skill that contains the folder would be copied with the database.
    let skill = store.path().parent().expect("a temporary directory has a parent").to_string_lossy();
    let refused = home.run(&["run", "parrot", "say hello", "--skill", &skill, "--json"]);
    assert!(refused.code != Some(0) && refused.stderr.contains("contains Abide's home"), "{refused:?}");
}

/// The home is in the folder of the database, which therefore cannot be hidden.
#[test]
fn a_database_that_cannot_be_hidden_is_warned_about_and_refused_by_a_named_mechanism() {
    let mut home = IsolationTestHome::new("/usr/bin:/bin");
    let parent = home.path().parent().expect("it has one").to_owned();
    home.hide_store(vec![parent]);
    let warning = home.warning(IsolationMode::Auto).expect("a warning");
    assert!(warning.contains("a folder of its own"), "{warning}");
    let (output, _) = home.script(IsolationMode::Auto, SEARCH).expect("the test machine allows it");
    assert_eq!(output, "", "the home is hidden");
    for isolation in [IsolationMode::Namespace, IsolationMode::Landlock] {
        let refused = home.script(isolation, "true");
        assert!(
            matches!(&refused, Err(StartError::IsolationUnavailable(reason)) if reason.contains("a folder of its own")),
            "{refused:?}"
        );
    }
}

/// The parent of the home, one of its folders and one of its files are mounted a second time: beside the home, and in
/// the workspace.
#[test]
fn the_home_is_hidden_at_every_place_at_which_it_is_mounted() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can mount");
    }
    let folder = tempfile::tempdir().expect("the test machine allows it");
    let at = |name: &str| folder.path().join(name);
    for name in ["a/home/keepers", "a/home/work/in", "b", "c", "d", "a/beside"] {
        fs::create_dir_all(at(name)).expect("the test machine allows it");
    }
    for name in ["a/home/token", "a/home/keepers/secret"] {
        fs::write(at(name), "SECRET").expect("the test machine allows it");
    }
    for name in ["a/beside/file", "a/home/work/file"] {
        fs::write(at(name), "VISIBLE ").expect("the test machine allows it");
    }
    fs::write(at("e"), "").expect("the test machine allows it");
    let script = r#"cd "$1" && mount --bind a b && mount --bind a a/home/work/in && mount --bind a/home/keepers c &&
        mount --bind a/home/work d && mount --bind a/home/token e && cat b/home/token c/secret e >&2 && cd / &&
        exec "$2" __confine --hide "$1/a/home" --by "$3" --show "$1/a/home/work" -- sh -c '
        cd "$0"; find . -type f ! -name e; cat a/home/token b/home/token c/secret e a/home/work/in/home/token
        cat a/beside/file b/beside/file a/home/work/file a/home/work/in/beside/file; true' "$1" 2>&3"#;
    let bubblewrap = bubblewrap().map(|folder| folder.join("bwrap").to_string_lossy().into_owned());
    for method in ["namespace", "landlock"].into_iter().chain(bubblewrap.as_deref()) {
        let output = abide_testkit::environment::abide("unshare")
            .args([
                "--mount",
                "--propagation=private",
                "sh",
                "-c",
                &format!("exec 3>/dev/null; {script}"),
                "sh",
            ])
            .arg(folder.path())
            .args([env!("CARGO_BIN_EXE_abide"), method])
            .output()
            .expect("the test machine allows it");
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(
            String::from_utf8_lossy(&output.stderr),
            "SECRETSECRETSECRET",
            "{method}: the mounts exist"
        );
        assert!(output.status.success() && !text.contains("SECRET"), "{method}: {text}");
        assert!(
            method == "landlock" || !text.contains("token") && !text.contains("secret"),
            "{method}: {text}"
        );
        assert!(text.ends_with("VISIBLE VISIBLE VISIBLE VISIBLE "), "{method}: {text}");
    }
}

/// The shell that started Abide may have opened the home, or a file in it.
#[test]
fn a_program_does_not_inherit_descriptors_of_the_shell_that_started_abide() {
    let home = IsolationTestHome::new("/usr/bin:/bin");
    let script = r#"exec 9<"$1"; ls /proc/self/fd/9/token >&2; exec "$2" __confine --hide "$1" --by "$3" -- \
        sh -c 'ls /proc/self/fd; cat /proc/self/fd/9/token'"#;
    for method in ["namespace", "landlock"] {
        let output = abide_testkit::environment::abide("/bin/sh")
            .args(["-c", script, "sh"])
            .arg(home.path())
            .args([env!("CARGO_BIN_EXE_abide"), method])
            .current_dir("/")
            .output()
            .expect("the test machine allows it");
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("/proc/self/fd/9/token\n"), "{output:?}");
        // 3 is the directory that `ls` lists.
        assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n1\n2\n3\n", "{method}: {output:?}");
    }
}

//! The log of a background daemon: in the home, bounded in size, with entries about the run.

use crate::{files_below, new_home};

#[test]
fn a_daemon_in_the_background_logs_to_files_of_bounded_size_and_number() {
    let home = new_home("[log]\nlevel = \"debug\"\nformat = \"json\"\nmax_bytes = 4096\nfiles = 3\n");
    home.run_ok(&["up", "--detach"]);
    let mut runs = vec![];
    for _ in 0..6 {
        home.run_ok(&["run", "parrot", "say hello\nprogress half-way"]);
        let listed: serde_json::Value = serde_json::from_str(&home.run_ok(&["ls", "--json"])).unwrap();
        runs.push(listed[0]["run_id"].as_str().unwrap().to_owned());
    }
    home.run_ok(&["down"]);
    let logs: Vec<_> = files_below(home.path())
        .into_iter()
        .filter(|(path, _)| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("daemon.log"))
        })
        .collect();
    assert_eq!(logs.len(), 3, "{:?}", logs.iter().map(|(path, _)| path).collect::<Vec<_>>());
    for (path, contents) in &logs {
        assert!(contents.len() <= 4096, "{} has {} bytes", path.display(), contents.len());
        for line in contents.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            serde_json::from_slice::<serde_json::Value>(line).unwrap();
        }
    }
    let lines = |contents: &[u8]| -> Vec<serde_json::Value> {
        contents.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
    };
    // The newest file may have been begun after the last run.
    let all: Vec<serde_json::Value> = logs.iter().flat_map(|(_, contents)| lines(contents)).collect();
    let of_last = all.iter().find(|line| line["span"]["run"] == runs[runs.len() - 1].as_str()).unwrap();
    assert_eq!((&of_last["span"]["engine"], &of_last["span"]["attempt"]), (&"parrot".into(), &1.into()));
    let newest = logs.iter().find(|(path, _)| path.ends_with("daemon.log")).unwrap();
    assert_eq!(lines(&newest.1).last().unwrap()["message"], "stopped");
}

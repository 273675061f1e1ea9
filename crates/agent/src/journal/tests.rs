//! Repairs, refusals, and that a refused file is not changed.

use serde_json::json;

use super::*;
use crate::event::{ActionRequest, ModelThought, UserMessage};

fn user_message(text: &str) -> AgentEvent {
    AgentEvent::UserMessage(UserMessage { text: text.to_owned() })
}

fn batch(calls: u64) -> Vec<AgentEvent> {
    let thought = AgentEvent::Thought(ModelThought { calls, ..ModelThought::default() });
    let request = |number: u64| {
        AgentEvent::ActionRequest(ActionRequest {
            action_id: format!("act_{number}"),
            call_id: format!("call_{number}"),
            tool_name: "t".to_owned(),
            tool_args: json!({ "text": "é \u{1} \"quoted\" ⟦", "number": -1.5e-300, "is": [true, null] }),
            tool_args_raw: None,
        })
    };
    std::iter::once(thought).chain((0..calls).map(request)).collect()
}

/// The state folder of this journal.
fn state(path: &Path) -> StateDirectory {
    let folder = path.parent().unwrap();
    StateDirectory::open(folder.parent().unwrap(), Path::new(folder.file_name().unwrap())).unwrap()
}

/// Opens a journal by its contents alone, like one of an earlier version.
fn open(path: &Path) -> Result<(AgentJournal, Vec<AgentJournalEntry>, Option<PathBuf>), JournalError> {
    // The open files remain usable after the folder is deleted.
    let folder = tempfile::tempdir().unwrap();
    let record = ProvenanceRecord::open(folder.path()).unwrap();
    let opened =
        AgentJournal::open(&state(path), record, StateStanding::EarlierVersion, ForeignStatePolicy::Refuse)?;
    Ok((opened.journal, opened.entries, opened.torn_tail_path))
}

/// A journal with these events, and its bytes.
fn write_journal(folder: &Path, events: Vec<AgentEvent>) -> (PathBuf, Vec<u8>) {
    let path = folder.join("journal.jsonl");
    let (mut journal, _, _) = open(&path).unwrap();
    journal.append(events).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    (path, bytes)
}

#[test]
fn a_batch_truncated_anywhere_is_discarded() {
    let folder = tempfile::tempdir().unwrap();
    let mut events = vec![user_message("go")];
    events.extend(batch(3));
    let (path, bytes) = write_journal(folder.path(), events);
    let first = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    // Without the final newline the last event is still complete.
    for cut in first + 1..bytes.len() - 1 {
        let journal = parse(&path, &bytes[..cut]).unwrap();
        let offset = journal.torn_tail.map(|torn| torn.offset);
        assert_eq!((journal.entries.len(), offset), (1, Some(first as u64)), "cut at {cut}");
    }
    for cut in [first + 1, first + 120, bytes.len() - 2] {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        let (journal, entries, torn_tail_path) = open(&path).unwrap();
        assert_eq!((entries.len(), journal.next_seq()), (1, 2), "cut at {cut}");
        assert_eq!(std::fs::read(torn_tail_path.unwrap()).unwrap(), &bytes[first..cut]);
        assert_eq!(std::fs::read(&path).unwrap(), &bytes[..first]);
    }
}

#[test]
fn a_last_line_without_newline_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (path, bytes) = write_journal(folder.path(), vec![user_message("a"), user_message("b")]);
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let (mut journal, entries, torn_tail_path) = open(&path).unwrap();
    assert_eq!((entries.len(), torn_tail_path), (2, None));
    journal.append(vec![user_message("c")]).unwrap();
    assert_eq!(AgentJournal::read(&state(&path)).unwrap().entries.len(), 3);
}

#[test]
fn a_torn_line_is_moved_to_a_file_and_the_journal_continues() {
    let folder = tempfile::tempdir().unwrap();
    let (path, mut bytes) = write_journal(folder.path(), vec![user_message("a")]);
    for torn in [&b"{\"seq\":2,\"ts"[..], b"\0\0\0\0", b"{\"seq\":4\0\0\n"] {
        bytes.extend_from_slice(torn);
        std::fs::write(&path, &bytes).unwrap();
        let (mut journal, entries, torn_tail_path) = open(&path).unwrap();
        assert_eq!(std::fs::read(torn_tail_path.unwrap()).unwrap(), torn);
        assert_eq!(journal.next_seq(), entries.len() as u64 + 1);
        journal.append(vec![user_message("b")]).unwrap();
        bytes = std::fs::read(&path).unwrap();
    }
    assert_eq!(AgentJournal::read(&state(&path)).unwrap().entries.len(), 4);
    assert!(folder.path().join("journal.torn-3").exists());
}

/// The error for a file with these bytes, which must not be changed.
fn open_error(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.jsonl");
    std::fs::write(&path, bytes).unwrap();
    let error = open(&path).unwrap_err().to_string();
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    error.strip_prefix(&format!("{}, ", path.display())).unwrap().to_owned()
}

#[test]
fn a_broken_middle_is_refused_by_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let (_, bytes) =
        write_journal(folder.path(), vec![user_message("a"), user_message("b"), user_message("c")]);
    let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    let broken = open_error(&[lines[0], b"oops\n", lines[2]].concat());
    assert!(broken.starts_with("line 2: this is not a journal event"), "{broken}");
    assert_eq!(open_error(&[lines[0], lines[2]].concat()), "line 2: expected event 2, found event 3");
    let kind = open_error(&[lines[0], br#"{"seq":2,"ts":"","type":"DREAM","payload":{}}"#, b"\n"].concat());
    assert!(kind.starts_with("line 2: this is not a journal event (unknown variant `DREAM`"), "{kind}");
}

#[test]
fn a_journal_in_one_line_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let mut events = vec![user_message("a")];
    events.extend(batch(2));
    let (_, bytes) = write_journal(folder.path(), events);
    let text = String::from_utf8(bytes).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let spaced = lines.join(" ").replace(",\"", ", \"").replace("\":", "\": ");
    for joined in [lines.concat(), lines.join(" "), lines.join(","), format!("[{}]", lines.join(",")), spaced]
    {
        for end in ["", "\n", " ", "\r\n"] {
            let error = open_error(format!("{joined}{end}").as_bytes());
            assert!(error.starts_with("line 1: several events stand in one line"), "{error}");
        }
    }
    // The first events are complete, and the others are in one line.
    let error = open_error(format!("{}\n{}", lines[0], lines[1..].concat()).as_bytes());
    assert!(error.starts_with("line 2: several events stand in one line"), "{error}");
}

#[test]
fn a_journal_in_another_encoding_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (_, bytes) = write_journal(folder.path(), vec![user_message("a")]);
    let text = String::from_utf8(bytes).unwrap();
    for text in [text.as_str(), text.trim_end()] {
        let error = open_error(format!("\u{feff}{text}").as_bytes());
        assert!(error.starts_with("line 1: the file begins with a byte order mark"), "{error}");
        for mark in [&[0xff, 0xfe][..], &[]] {
            let wide: Vec<u8> =
                mark.iter().copied().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect();
            let error = open_error(&wide);
            assert!(error.starts_with("line 1: the file is not in UTF-8"), "{error}");
        }
    }
}

#[test]
fn crlf_line_ends_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let (path, bytes) = write_journal(folder.path(), vec![user_message("a"), user_message("b")]);
    let text = String::from_utf8(bytes).unwrap().replace('\n', "\r\n");
    for text in [text.as_str(), text.trim_end()] {
        std::fs::write(&path, text).unwrap();
        let (mut journal, entries, torn_tail_path) = open(&path).unwrap();
        assert_eq!((entries.len(), torn_tail_path), (2, None));
        journal.append(vec![user_message("c")]).unwrap();
        assert_eq!(AgentJournal::read(&state(&path)).unwrap().entries.len(), 3);
    }
}

#[test]
fn an_edited_last_line_is_not_treated_as_torn() {
    let folder = tempfile::tempdir().unwrap();
    let (_, bytes) = write_journal(folder.path(), vec![user_message("a"), user_message("b")]);
    let text = String::from_utf8(bytes).unwrap();
    let text = text.trim_end();
    for edited in
        [text.replace("\"b\"", "b"), format!("{text}}}"), format!("{text} // mine"), format!("{text},")]
    {
        let error = open_error(edited.as_bytes());
        assert!(error.starts_with("line 2: this is not a journal event"), "{error}");
    }
}

#[test]
fn a_reformatted_journal_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (_, bytes) = write_journal(folder.path(), vec![user_message("a"), user_message("b")]);
    let values: Vec<serde_json::Value> =
        bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
    let pretty: Vec<String> =
        values.iter().map(|value| serde_json::to_string_pretty(value).unwrap()).collect();
    let list = serde_json::to_string_pretty(&values).unwrap();
    for text in [pretty.join("\n") + "\n", pretty.join("\n"), list] {
        let error = open_error(text.as_bytes());
        assert!(error.starts_with("line 1: an event does not end in the line"), "{error}");
    }
}

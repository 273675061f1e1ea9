//! The default answer. It repeats the received texts, so that a test can prove the program's memory.
//!
//! The format is `STUB users=<n> last=<…> history=[… | …]`, after `TOOLRESULT: … || ` if a tool has returned. The
//! newest prompt may contain directives, which replace a script: `[[shell:ls]]`, `[[tool:NAME:{"a":1}]]`,
//! `[[say:hello]]`, `[[http:500]]`, `[[cut]]`, `[[sleep:3]]` (seconds over which the answer is streamed).

use std::time::Duration;

use serde_json::Value;

use super::{
    answer::ScriptedAnswer,
    received::{ReceivedRequest, ReceivedToolResult},
};

pub(super) fn answer(request: &ReceivedRequest) -> ScriptedAnswer {
    if request.current_prompt().is_none() {
        return ScriptedAnswer::say(describe_request(request));
    }
    answer_directives(request)
}

/// Formats the received texts in one line.
fn describe_request(request: &ReceivedRequest) -> String {
    let texts = request.user_texts();
    let summary = format!(
        "STUB users={} last=<{}> history=[{}]",
        texts.len(),
        texts.last().map_or("", String::as_str),
        texts.join(" | ")
    );
    let returned = request.new_tool_results();
    if returned.is_empty() {
        return summary;
    }
    let results: Vec<String> = returned.iter().map(shorten).collect();
    format!("TOOLRESULT: {} || {summary}", results.join(" ; "))
}

fn shorten(result: &ReceivedToolResult) -> String {
    let line = result.text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_RESULT_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

const MAX_RESULT_CHARS: usize = 400;

fn answer_directives(request: &ReceivedRequest) -> ScriptedAnswer {
    let prompt = request.last_block();
    let plain = || ScriptedAnswer::say(describe_request(request));
    let mut answer = match (directive(&prompt, "http"), directive(&prompt, "say")) {
        (Some(code), _) => match code.parse() {
            Ok(code) => ScriptedAnswer::status(code, format!("scripted failure {code}")),
            Err(_) => ScriptedAnswer::say(format!("NO STATUS {code}")),
        },
        (None, Some(text)) => ScriptedAnswer::say(text),
        (None, None) => match (directive(&prompt, "shell"), call(&prompt)) {
            (Some(command), _) => ScriptedAnswer::shell(command),
            (None, Some((tool, args))) => ScriptedAnswer::call(tool, args),
            (None, None) => plain(),
        },
    };
    if let Some(seconds) = directive(&prompt, "sleep").and_then(|text| text.parse::<u64>().ok()) {
        let ticks: String = (0..seconds * 2).map(|tick| format!("tick{tick:<4}    ")).collect();
        answer = ScriptedAnswer::say(ticks)
            .then_say(describe_request(request))
            .paced_by(Duration::from_millis(500));
    }
    if prompt.contains("[[cut]]") {
        answer = answer.cut_after(CUT_BYTES);
    }
    answer
}

/// The number of bytes after which `[[cut]]` truncates: the beginning of the stream is sent, the text is not.
const CUT_BYTES: usize = 600;

/// Returns the part of a prompt between `[[name:` and `]]`.
fn directive<'a>(prompt: &'a str, name: &str) -> Option<&'a str> {
    let (_, after) = prompt.split_once(&format!("[[{name}:"))?;
    Some(after.split_once("]]")?.0)
}

/// Parses the call in `[[tool:NAME:{…}]]`. The arguments may contain brackets, so they are parsed as JSON to their end.
fn call(prompt: &str) -> Option<(String, Value)> {
    let (_, after) = prompt.split_once("[[tool:")?;
    let (tool, rest) = after.split_once(':')?;
    let args = serde_json::Deserializer::from_str(rest).into_iter::<Value>().next()?.ok()?;
    Some((tool.to_owned(), args))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn directives_are_found_in_prompts() {
        assert_eq!(directive("please [[shell:echo hi; exit 3]] now", "shell"), Some("echo hi; exit 3"));
        assert_eq!(directive("[[http:401]]", "http"), Some("401"));
        assert_eq!(directive("[[shell:open", "shell"), None);
        let (tool, args) = call(r#"[[tool:Ask:{"q":[["a"]]}]] x"#).unwrap();
        assert_eq!((tool.as_str(), args), ("Ask", json!({ "q": [["a"]] })));
    }
}

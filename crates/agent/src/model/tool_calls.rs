//! Assembles tool calls from the pieces in which servers send them.
//!
//! By the specification each piece names its call by an index, the first piece has id and name, and the others extend
//! the arguments. Servers that claim compatibility omit the index, send the id late, repeat id and name in each piece,
//! or give several complete calls the same index. All of these are accepted.

use serde_json::Value;

use super::message::ModelToolCall;

/// The calls of a reply so far.
#[derive(Debug, Default)]
pub(super) struct ToolCallAssembler(Vec<PartialToolCall>);

#[derive(Debug, Default)]
struct PartialToolCall {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
}

impl ToolCallAssembler {
    /// Adds a piece. Returns the name of the call if the piece begins one.
    pub(super) fn push_delta(&mut self, piece: &Value) -> Option<&str> {
        let function = &piece["function"];
        let index = piece["index"].as_u64();
        let id = piece["id"].as_str().unwrap_or_default();
        let name = function["name"].as_str().unwrap_or_default();
        let at = self.index_for(index, id, name);
        let call = &mut self.0[at];
        if call.id.is_empty() {
            id.clone_into(&mut call.id);
        }
        let begins = call.name.is_empty() && !name.is_empty();
        // Most servers send the name completely, once or in each piece; a few send it in pieces.
        if call.name != name {
            call.name.push_str(name);
        }
        match &function["arguments"] {
            Value::String(more) => call.arguments.push_str(more),
            Value::Null => {}
            // Some servers send the object itself instead of its text.
            whole @ (Value::Object(_) | Value::Array(_) | Value::Bool(_) | Value::Number(_)) => {
                call.arguments.push_str(&whole.to_string());
            }
        }
        begins.then_some(call.name.as_str())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The calls, each with a unique id. `new_id` creates an id if the server sent none or a duplicate.
    pub(super) fn finish(self, mut new_id: impl FnMut() -> String) -> Vec<ModelToolCall> {
        let mut calls: Vec<ModelToolCall> = Vec::new();
        for PartialToolCall { index: _, id, name, arguments } in self.0 {
            let needs_new_id = id.is_empty() || calls.iter().any(|call| call.id == id);
            calls.push(ModelToolCall { id: if needs_new_id { new_id() } else { id }, name, arguments });
        }
        calls
    }

    /// The index of the call that a piece belongs to; a new one if the piece begins a call.
    fn index_for(&mut self, index: Option<u64>, id: &str, name: &str) -> usize {
        let same_id = |slot: &PartialToolCall| !id.is_empty() && slot.id == id;
        let position = match index {
            Some(_) => self.0.iter().rposition(|slot| slot.index == index).filter(|at| {
                let slot = &self.0[*at];
                // A different id with a name under the same index is another call. A different id without a name is
                // ignored.
                id.is_empty() || slot.id.is_empty() || slot.id == id || name.is_empty()
            }),
            None => match self.0.iter().rposition(same_id) {
                Some(at) => Some(at),
                None if name.is_empty() => self.0.len().checked_sub(1),
                None => None,
            },
        };
        position.unwrap_or_else(|| {
            self.0.push(PartialToolCall { index, ..PartialToolCall::default() });
            self.0.len() - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(pieces: &[Value], expected: &[(&str, &str, &str)]) {
        let mut calls = ToolCallAssembler::default();
        for piece in pieces {
            calls.push_delta(piece);
        }
        let mut id_count = 0;
        let calls = calls.finish(|| {
            id_count += 1;
            format!("fresh{id_count}")
        });
        let calls: Vec<(&str, &str, &str)> =
            calls.iter().map(|c| (c.id.as_str(), c.name.as_str(), c.arguments.as_str())).collect();
        assert_eq!(calls, expected);
    }

    fn piece(index: Value, id: Value, name: Value, arguments: Value) -> Value {
        json!({ "index": index, "id": id, "function": { "name": name, "arguments": arguments } })
    }

    #[test]
    fn pieces_are_put_together_by_their_index() {
        let pieces = [
            piece(json!(0), json!("a"), json!("ls"), json!("")),
            piece(json!(1), json!("b"), json!("cat"), json!("")),
            json!({ "index": 0, "function": { "arguments": "{\"x\"" } }),
            json!({ "index": 1, "function": { "arguments": "{}" } }),
            json!({ "index": 0, "function": { "arguments": ":1}" } }),
        ];
        check(&pieces, &[("a", "ls", "{\"x\":1}"), ("b", "cat", "{}")]);
    }

    #[test]
    fn an_id_may_come_late_or_never() {
        let pieces = [
            piece(json!(0), Value::Null, json!("ls"), json!("{")),
            piece(json!(0), json!("late"), Value::Null, json!("}")),
            piece(json!(1), json!(""), json!("cat"), json!("{}")),
        ];
        check(&pieces, &[("late", "ls", "{}"), ("fresh1", "cat", "{}")]);
    }

    #[test]
    fn id_and_name_may_be_repeated_in_every_piece() {
        let again = |arguments: &str| piece(json!(0), json!("a"), json!("ls"), json!(arguments));
        check(&[again("{\"x\""), again(":1"), again("}")], &[("a", "ls", "{\"x\":1}")]);
        let whim =
            |id: &str, name: Value, arguments: &str| piece(json!(0), json!(id), name, json!(arguments));
        check(&[whim("a", json!("ls"), "{"), whim("b", Value::Null, "}")], &[("a", "ls", "{}")]);
    }

    #[test]
    fn whole_calls_may_share_an_index_or_have_none() {
        let whole = |index: Value, id: &str| piece(index, json!(id), json!("ls"), json!("{}"));
        let expected = [("a", "ls", "{}"), ("b", "ls", "{}")];
        check(&[whole(json!(0), "a"), whole(json!(0), "b")], &expected);
        check(&[whole(Value::Null, "a"), whole(Value::Null, "b")], &expected);
        let nameless = [
            piece(Value::Null, json!("a"), json!("ls"), json!("{")),
            piece(Value::Null, Value::Null, Value::Null, json!("}")),
            piece(Value::Null, json!(""), json!("cat"), json!("{}")),
        ];
        check(&nameless, &[("a", "ls", "{}"), ("fresh1", "cat", "{}")]);
    }

    #[test]
    fn arguments_may_be_an_object_and_an_id_may_not_be_used_twice() {
        let object = |index: u64| piece(json!(index), json!("a"), json!("ls"), json!({ "x": 1 }));
        check(&[object(0), object(1)], &[("a", "ls", "{\"x\":1}"), ("fresh1", "ls", "{\"x\":1}")]);
    }
}

//! The text of a context: a headline, then one field after the other.
//!
//! A value stands in quotes on the line of its name, or on lines of its own that begin with a bar. So nothing in a value
//! can be taken for another field, and the text has no end that a value could bring forward.

use core::fmt::{Display, Formatter, Result};

use super::{
    ChangeKind, CommandLine, Context, Field, FieldValue, Subject,
    visible::{Block, Inline, Json, Name},
};

impl Display for Context {
    fn fmt(&self, out: &mut Formatter<'_>) -> Result {
        match &self.subject {
            Subject::Command { line, cwd } => {
                out.write_str("May this command be run?")?;
                match line {
                    CommandLine::Shell(shell) => write!(out, "\ncommand:{}", Block(shell))?,
                    CommandLine::Argv(argv) => {
                        out.write_str("\nprogram and arguments:")?;
                        for word in argv {
                            write!(out, "\n  {}", Inline(word))?;
                        }
                    }
                }
                if let Some(cwd) = cwd {
                    write!(out, "\ncwd: {}", Inline(cwd))?;
                }
            }
            Subject::FileChange { files } => {
                match files.len() {
                    1 => out.write_str("May this file be changed?")?,
                    count => write!(out, "May these {count} files be changed?")?,
                }
                for file in files {
                    let verb = match file.change {
                        ChangeKind::Write => "writes",
                        ChangeKind::Edit => "edits",
                        ChangeKind::Delete => "deletes",
                    };
                    write!(out, "\n{verb}: {}", Inline(&file.path))?;
                    if !file.diff.is_empty() {
                        write!(out, "{}", Block(&file.diff))?;
                    }
                }
            }
            Subject::Tool { name, input } => {
                write!(out, "May {} be used?", Name(name))?;
                fields(input, out)?;
            }
        }
        if let Some(tool) = &self.tool {
            write!(out, "\ntool: {}", Inline(tool))?;
        }
        fields(&self.rest, out)?;
        for remark in &self.remarks {
            write!(out, "\nthe engine says:{}", Block(remark))?;
        }
        Ok(())
    }
}

fn fields(fields: &[Field], out: &mut Formatter<'_>) -> Result {
    for Field { name, value } in fields {
        write!(out, "\n{}:", Name(name))?;
        match value {
            FieldValue::Text(text) if text.contains(['\n', '"']) => write!(out, "{}", Block(text))?,
            FieldValue::Text(text) => write!(out, " {}", Inline(text))?,
            FieldValue::Json(json) => write!(out, " {}", Json(json))?,
        }
    }
    Ok(())
}

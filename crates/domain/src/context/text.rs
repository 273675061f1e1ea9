//! The textual form of a context: a headline, followed by its fields.
//!
//! A value stands in quotes on the line of its name, or on separate lines that begin with a bar. A value can therefore
//! not imitate another field or the end of the text.

use core::fmt::{Display, Formatter, Result};

use super::{
    ApprovalContext, ApprovalSubject, ChangeKind, CommandLine, FieldValue, RequestField,
    visible::{CompactJson, QuotedBlock, QuotedName, QuotedText},
};

impl Display for ApprovalContext {
    fn fmt(&self, out: &mut Formatter<'_>) -> Result {
        match &self.subject {
            ApprovalSubject::Command { line, cwd } => {
                out.write_str("May this command be run?")?;
                match line {
                    CommandLine::Shell(shell) => write!(out, "\ncommand:{}", QuotedBlock(shell))?,
                    CommandLine::Argv(argv) => {
                        out.write_str("\nprogram and arguments:")?;
                        for word in argv {
                            write!(out, "\n  {}", QuotedText(word))?;
                        }
                    }
                }
                if let Some(cwd) = cwd {
                    write!(out, "\ncwd: {}", QuotedText(cwd))?;
                }
            }
            ApprovalSubject::FileChange { files } => {
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
                    write!(out, "\n{verb}: {}", QuotedText(&file.path))?;
                    if !file.diff.is_empty() {
                        write!(out, "{}", QuotedBlock(&file.diff))?;
                    }
                }
            }
            ApprovalSubject::Tool { name, input } => {
                write!(out, "May {} be used?", QuotedName(name))?;
                write_fields(input, out)?;
            }
        }
        if let Some(tool) = &self.tool {
            write!(out, "\ntool: {}", QuotedText(tool))?;
        }
        write_fields(&self.other_fields, out)?;
        for remark in &self.remarks {
            write!(out, "\nthe engine says:{}", QuotedBlock(remark))?;
        }
        Ok(())
    }
}

fn write_fields(fields: &[RequestField], out: &mut Formatter<'_>) -> Result {
    for RequestField { name, value } in fields {
        write!(out, "\n{}:", QuotedName(name))?;
        match value {
            FieldValue::Text(text) if text.contains(['\n', '"']) => write!(out, "{}", QuotedBlock(text))?,
            FieldValue::Text(text) => write!(out, " {}", QuotedText(text))?,
            FieldValue::Json(json) => write!(out, " {}", CompactJson(json))?,
        }
    }
    Ok(())
}

//! Events as JSON: one document, or one object per line.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde_json::{json, Value};

use crate::columns::Events;
use crate::context::Context;
use crate::Exporter;

/// Writer of JSON (`lines` false: `{…, "events": […]}`) or JSONL (true: one event per line).
pub struct Json {
    out: BufWriter<File>,
    lines: bool,
    operations: HashMap<i64, (String, String)>,
    paths: HashMap<i64, String>,
    written: u64,
}

impl Json {
    /// Create the file. A document begins with the fields of `head`, followed by the events.
    pub fn create(path: &Path, context: &Context, lines: bool, head: &Value) -> io::Result<Self> {
        let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
        if !lines {
            let text = head.to_string();
            let inside = text.strip_prefix('{').and_then(|t| t.strip_suffix('}'));
            let inside = inside.unwrap_or("");
            write!(out, "{{{inside}")?;
            if !inside.is_empty() {
                write!(out, ",")?;
            }
            write!(out, "\n\"events\":[")?;
        }
        // paths are escaped once, not for every event
        let paths = context
            .paths()
            .into_iter()
            .map(|(n, path)| (n, Value::String(path).to_string()))
            .collect();
        Ok(Json {
            out,
            lines,
            operations: context.operation_names(),
            paths,
            written: 0,
        })
    }
}

impl Exporter for Json {
    fn events(&mut self, events: &Events) -> io::Result<()> {
        let unknown = (String::from("?"), String::from("?"));
        for e in events.rows() {
            if !self.lines {
                let between: &[u8] = if self.written == 0 { b"\n" } else { b",\n" };
                self.out.write_all(between)?;
            }
            let (op, direction) = self.operations.get(&e.op).unwrap_or(&unknown);
            let path = self.paths.get(&e.file_id).map_or("null", String::as_str);
            write!(
                self.out,
                "{{\"t_ns\":{},\"op\":\"{op}\",\"direction\":\"{direction}\",\"file_id\":{},\"path\":{path},\
                 \"offset_bytes\":{},\"size_bytes\":{},\"done_bytes\":{},\"errno\":{},\"latency_ns\":{},\
                 \"pid\":{},\"tid\":{},\"flags\":{}}}",
                e.t_ns, e.file_id, e.offset, e.size, e.done, e.errno, e.latency_ns, e.pid, e.tid, e.flags,
            )?;
            if self.lines {
                self.out.write_all(b"\n")?;
            }
            self.written += 1;
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<Value> {
        if !self.lines {
            self.out.write_all(b"\n]}\n")?;
        }
        self.out.flush()?;
        Ok(json!({"events": self.written}))
    }
}

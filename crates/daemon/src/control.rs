//! The control socket: one JSON object per line in, one out.

use std::fmt::Display;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use serde_json::{json, Value};

use crate::Error;

/// Listens at `path`, whoever was there before.
pub fn listen(path: &Path) -> Result<UnixListener, Error> {
    let _ = fs::remove_file(path);
    UnixListener::bind(path)
        .map_err(|error| Error::host(format!("control socket {}", path.display()), error))
}

/// What a client is told: the answer's fields and `ok`, or the error.
pub fn reply<E: Display>(answer: Result<Value, E>) -> Value {
    match answer {
        Ok(Value::Object(mut fields)) => {
            fields.insert("ok".into(), json!(true));
            Value::Object(fields)
        }
        Ok(_) => json!({"ok": true}),
        Err(error) => json!({"ok": false, "error": error.to_string()}),
    }
}

/// Answers a client until it leaves.
pub fn converse<E: Display>(stream: &UnixStream, mut obey: impl FnMut(&str) -> Result<Value, E>) {
    let mut out = stream;
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let mut answer = reply(obey(&line)).to_string();
        answer.push('\n');
        if out.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_gets_one_and_an_error_does_not_end_the_talk() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let talk = std::thread::spawn(move || {
            converse(&theirs, |line| match line {
                "a" => Ok(json!({"x": 1})),
                "b" => Ok(Value::Null),
                other => Err(format!("no {other}")),
            });
        });
        (&ours).write_all(b"a\nc\nb\n").unwrap();
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        let told: Vec<Value> = BufReader::new(&ours)
            .lines()
            .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
            .collect();
        let expected = [
            json!({"x": 1, "ok": true}),
            json!({"ok": false, "error": "no c"}),
            json!({"ok": true}),
        ];
        assert_eq!(told, expected);
        talk.join().unwrap();
    }
}

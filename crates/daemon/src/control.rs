//! The control socket: one JSON object per line for each request and each reply.

use std::fmt::Display;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use serde_json::{json, Value};

use crate::{private, Error};

/// Longest request in bytes. A schedule of 100,000 changes fits; a flood does not.
pub const LONGEST_REQUEST: usize = 16 << 20;

/// Listen at `path` and replace an existing file there. Only our own user can connect.
///
/// Refuse a directory in which other users could replace the socket.
pub fn listen(path: &Path) -> Result<UnixListener, Error> {
    let bind = || -> io::Result<UnixListener> {
        private::check_parent(path)?;
        let _ = fs::remove_file(path);
        // SAFETY: plain system calls; the mask is put back at once. A socket gets its mode when it is bound.
        let mask = unsafe { libc::umask(0o177) };
        let bound = UnixListener::bind(path);
        unsafe { libc::umask(mask) };
        bound
    };
    bind().map_err(|error| Error::host(format!("control socket {}", path.display()), error))
}

/// Iterate over connections from root and our own user. Close other connections.
pub fn incoming(listener: &UnixListener) -> impl Iterator<Item = UnixStream> + '_ {
    listener.incoming().flatten().filter(private::may_ask)
}

/// Accept the next connection from root or our own user. Like `accept` of a non-blocking listener.
pub fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
    loop {
        let (stream, _) = listener.accept()?;
        if private::may_ask(&stream) {
            return Ok(stream);
        }
    }
}

/// Iterate over the lines of a client until it disconnects or sends a line longer than [`LONGEST_REQUEST`].
pub fn lines(stream: &UnixStream) -> impl Iterator<Item = String> + '_ {
    let mut reader = BufReader::new(stream);
    std::iter::from_fn(move || {
        let mut line = Vec::new();
        let most = LONGEST_REQUEST as u64 + 1;
        reader
            .by_ref()
            .take(most)
            .read_until(b'\n', &mut line)
            .ok()?;
        if line.pop()? != b'\n' {
            return None;
        }
        String::from_utf8(line).ok()
    })
}

/// Reply to a client: the fields of the answer with `ok`, or the error.
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

/// Answer the requests of a client until it disconnects.
pub fn converse<E: Display>(stream: &UnixStream, mut obey: impl FnMut(&str) -> Result<Value, E>) {
    let mut out = stream;
    for line in lines(stream) {
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
    fn every_line_gets_a_reply_and_errors_keep_the_connection_open() {
        let (client, server) = UnixStream::pair().unwrap();
        let talk = std::thread::spawn(move || {
            converse(&server, |line| match line {
                "a" => Ok(json!({"x": 1})),
                "b" => Ok(Value::Null),
                other => Err(format!("no {other}")),
            });
        });
        (&client).write_all(b"a\nc\nb\n").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let replies: Vec<Value> = BufReader::new(&client)
            .lines()
            .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
            .collect();
        let expected = [
            json!({"x": 1, "ok": true}),
            json!({"ok": false, "error": "no c"}),
            json!({"ok": true}),
        ];
        assert_eq!(replies, expected);
        talk.join().unwrap();
    }
}

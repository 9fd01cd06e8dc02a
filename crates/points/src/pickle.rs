//! Graphite's pickle protocol, restricted: a list of `(path, (time, value))`, read as Carbon reads it.
//!
//! A pickle is a program for a stack machine. This machine creates numbers, texts, lists and tuples. Any other object
//! becomes a value without content ([`Value::Other`]): no class is looked up and nothing is called. An entry that is
//! not a point is refused, and the others are read. Values are stored once and referred to by number. So a list that
//! contains itself, or another one many times, needs no extra memory.
//!
//! Source: Python's `pickletools`; "The pickle protocol" of Graphite 1.1; `float(value)` of its `protocols.py`.

use crate::columns::{Reader, Refusal};
use crate::graphite;
use crate::number;

/// Maximum number of operations of one pickle.
const MOST_STEPS: usize = 8_000_000;
const SHORT: &str = "a pickle that takes more than it has";

#[derive(Clone, Copy, Debug)]
enum Value<'a> {
    Nothing,
    Boolean(bool),
    Integer(i64),
    Float(f64),
    Text(&'a [u8]),
    /// Text with escapes.
    Escaped(usize),
    List(usize),
    Tuple(usize),
    /// Object of another type, which is not created.
    Other,
}

/// Read one pickle, without the length before it. Error: the reason why it is not a valid one.
pub fn read(reader: &mut Reader, data: &[u8], now_ns: i64) -> Result<(), String> {
    let mut machine = Machine {
        data,
        at: 0,
        stack: Vec::new(),
        marks: Vec::new(),
        lists: Vec::new(),
        escaped: Vec::new(),
        memo: Vec::new(),
    };
    let (Value::List(all) | Value::Tuple(all)) = machine.run()? else {
        return Err("a pickle of something other than a list".into());
    };
    for (number, &entry) in machine.lists[all].iter().enumerate() {
        let number = number + 1;
        let taken = machine
            .point(entry)
            .and_then(|(path, ns, value)| graphite::point(reader, number, path, ns, now_ns, value));
        if let Err((why, what)) = taken {
            reader.refuse(number, why, &what);
        }
    }
    Ok(())
}

struct Machine<'a> {
    data: &'a [u8],
    at: usize,
    stack: Vec<Value<'a>>,
    marks: Vec<usize>,
    lists: Vec<Vec<Value<'a>>>,
    escaped: Vec<Vec<u8>>,
    memo: Vec<Value<'a>>,
}

impl<'a> Machine<'a> {
    /// Path, time [ns] and value of an entry.
    fn point(&self, entry: Value<'a>) -> Result<(&[u8], i64, f64), (Refusal, String)> {
        let malformed = |what: String| (Refusal::Malformed, what);
        let strange = || malformed("an entry other than (path, (time, value))".into());
        let [path, inner] = self.pair(entry).ok_or_else(strange)?;
        let path = self.text(path).ok_or_else(strange)?;
        let [time, value] = self.pair(inner).ok_or_else(strange)?;
        let ns = match time {
            Value::Integer(s) => s.checked_mul(1_000_000_000),
            time => match self.text(time) {
                Some(text) => number::time_ns(text.trim_ascii(), 1_000_000_000),
                None => self
                    .float(time)
                    .filter(|s| s.abs() < 9.2e9)
                    .map(|s| (s * 1e9).round() as i64),
            },
        };
        let ns = ns.ok_or_else(|| malformed(format!("a time of kind {}", time.kind())))?;
        let value = self
            .float(value)
            .ok_or_else(|| malformed(format!("a value of kind {}, no number", value.kind())))?;
        Ok((path, ns, value))
    }

    /// Result of Python's `float()` for a value.
    fn float(&self, of: Value<'a>) -> Option<f64> {
        match of {
            Value::Boolean(value) => Some(f64::from(u8::from(value))),
            Value::Integer(value) => Some(value as f64),
            Value::Float(value) => Some(value),
            // Carbon's relay sends texts
            other => number::float(self.text(other)?.trim_ascii()),
        }
    }

    fn text(&self, of: Value<'a>) -> Option<&[u8]> {
        match of {
            Value::Text(text) => Some(text),
            Value::Escaped(n) => Some(&self.escaped[n]),
            _ => None,
        }
    }

    fn pair(&self, of: Value<'a>) -> Option<[Value<'a>; 2]> {
        match of {
            Value::Tuple(n) | Value::List(n) => self.lists[n].as_slice().try_into().ok(),
            _ => None,
        }
    }

    fn run(&mut self) -> Result<Value<'a>, String> {
        for _ in 0..MOST_STEPS {
            let operation = self.bytes(1)?[0];
            match operation {
                b'.' => return self.pop(),
                0x80 => {
                    self.bytes(1)?;
                }
                0x95 => {
                    self.bytes(8)?;
                }
                b'(' => self.marks.push(self.stack.len()),
                b']' => self.list(Vec::new()),
                b')' => self.tuple(Vec::new()),
                b'l' => {
                    let items = self.marked()?;
                    self.list(items);
                }
                b't' => {
                    let items = self.marked()?;
                    self.tuple(items);
                }
                0x85..=0x87 => {
                    let from = self.stack.len().checked_sub(usize::from(operation - 0x84));
                    let items = self.stack.split_off(from.ok_or(SHORT)?);
                    self.tuple(items);
                }
                b'a' => {
                    let item = self.pop()?;
                    self.extend(vec![item])?;
                }
                b'e' => {
                    let items = self.marked()?;
                    self.extend(items)?;
                }
                b'N' => self.stack.push(Value::Nothing),
                0x88 => self.stack.push(Value::Boolean(true)),
                0x89 => self.stack.push(Value::Boolean(false)),
                b'K' => {
                    let value = i64::from(self.bytes(1)?[0]);
                    self.stack.push(Value::Integer(value));
                }
                b'M' => {
                    let value = self.number::<2>().map(u16::from_le_bytes)?;
                    self.stack.push(Value::Integer(i64::from(value)));
                }
                b'J' => {
                    let value = self.number::<4>().map(i32::from_le_bytes)?;
                    self.stack.push(Value::Integer(i64::from(value)));
                }
                0x8a => {
                    let length = usize::from(self.bytes(1)?[0]);
                    self.long(length)?;
                }
                0x8b => {
                    let length = self.number::<4>().map(u32::from_le_bytes)? as usize;
                    self.long(length)?;
                }
                b'G' => {
                    let value = self.number::<8>().map(f64::from_be_bytes)?;
                    self.stack.push(Value::Float(value));
                }
                b'I' | b'L' => {
                    let text = self.line()?;
                    let digits = text.strip_suffix(b"L").unwrap_or(text);
                    let integer = std::str::from_utf8(digits)
                        .ok()
                        .and_then(|d| d.parse().ok());
                    self.stack.push(match (text, integer) {
                        (b"00" | b"01", _) if operation == b'I' => Value::Boolean(text == b"01"),
                        (_, Some(value)) => Value::Integer(value),
                        _ => number::float(digits).map_or(Value::Other, Value::Float),
                    });
                }
                b'F' => {
                    let value = number::float(self.line()?);
                    self.stack.push(value.map_or(Value::Other, Value::Float));
                }
                b'U' | 0x8c | b'C' => {
                    let length = usize::from(self.bytes(1)?[0]);
                    self.characters(length)?;
                }
                b'X' | b'T' | b'B' => {
                    let length = self.number::<4>().map(u32::from_le_bytes)? as usize;
                    self.characters(length)?;
                }
                0x8d | 0x8e | 0x96 => {
                    let length = self.number::<8>().map(u64::from_le_bytes)?;
                    let length = usize::try_from(length).map_err(|_| SHORT)?;
                    self.characters(length)?;
                }
                b'V' | b'S' => {
                    let text = self.line()?;
                    let quoted =
                        |q: &[u8]| text.len() >= 2 && text.starts_with(q) && text.ends_with(q);
                    let inside = if operation == b'S' && (quoted(b"'") || quoted(b"\"")) {
                        &text[1..text.len() - 1]
                    } else {
                        text
                    };
                    if !inside.contains(&b'\\') && (operation == b'S' || inside.is_ascii()) {
                        self.stack.push(Value::Text(inside));
                    } else {
                        let text = unescaped(inside, operation == b'V');
                        self.stack.push(Value::Escaped(self.escaped.len()));
                        self.escaped.push(text);
                    }
                }
                // objects of other types: classes, calls, sets, dictionaries, external objects
                b'c' => {
                    self.line()?;
                    self.line()?;
                    self.stack.push(Value::Other);
                }
                0x93 | 0x81 | b'R' => self.other(2)?,
                0x92 => self.other(3)?,
                b'Q' => self.other(1)?,
                b'}' | 0x8f | 0x97 => self.stack.push(Value::Other),
                b'P' => {
                    self.line()?;
                    self.stack.push(Value::Other);
                }
                0x82..=0x84 => {
                    self.bytes([1, 2, 4][usize::from(operation - 0x82)])?;
                    self.stack.push(Value::Other);
                }
                b'i' => {
                    self.line()?;
                    self.line()?;
                    self.marked()?;
                    self.stack.push(Value::Other);
                }
                b'o' | b'd' | 0x91 => {
                    self.marked()?;
                    self.stack.push(Value::Other);
                }
                b'b' => {
                    self.pop()?;
                }
                b's' => {
                    self.pop()?;
                    self.pop()?;
                }
                b'u' | 0x90 | b'1' => {
                    self.marked()?;
                }
                0x98 => {}
                b'0' => {
                    if self.stack.len() > self.marks.last().copied().unwrap_or(0) {
                        self.stack.pop();
                    } else {
                        self.marks.pop().ok_or(SHORT)?;
                    }
                }
                b'2' => {
                    let top = *self.stack.last().ok_or(SHORT)?;
                    self.stack.push(top);
                }
                0x94 => self.remember(self.memo.len())?,
                b'q' => {
                    let n = usize::from(self.bytes(1)?[0]);
                    self.remember(n)?;
                }
                b'r' => {
                    let n = self.number::<4>().map(u32::from_le_bytes)? as usize;
                    self.remember(n)?;
                }
                b'p' => {
                    let n = index(self.line()?)?;
                    self.remember(n)?;
                }
                b'h' => {
                    let n = usize::from(self.bytes(1)?[0]);
                    self.recall(n)?;
                }
                b'j' => {
                    let n = self.number::<4>().map(u32::from_le_bytes)? as usize;
                    self.recall(n)?;
                }
                b'g' => {
                    let n = index(self.line()?)?;
                    self.recall(n)?;
                }
                other => {
                    return Err(format!(
                        "a pickle with the operation {other:#04x}, which Python does not have"
                    ))
                }
            }
        }
        Err(format!("a pickle of more than {MOST_STEPS} operations"))
    }

    fn bytes(&mut self, count: usize) -> Result<&'a [u8], String> {
        let end = self
            .at
            .checked_add(count)
            .filter(|&end| end <= self.data.len());
        let end = end.ok_or("a pickle that ends in the middle")?;
        let content = &self.data[self.at..end];
        self.at = end;
        Ok(content)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], String> {
        Ok(self.bytes(N)?.try_into().expect("of that length"))
    }

    fn line(&mut self) -> Result<&'a [u8], String> {
        let rest = &self.data[self.at..];
        let length = memchr::memchr(b'\n', rest).ok_or("a pickle that ends in the middle")?;
        self.at += length + 1;
        Ok(&rest[..length])
    }

    /// Pop `takes` values and push an object that is not created.
    fn other(&mut self, takes: usize) -> Result<(), String> {
        for _ in 0..takes {
            self.pop()?;
        }
        self.stack.push(Value::Other);
        Ok(())
    }

    fn long(&mut self, length: usize) -> Result<(), String> {
        let bytes = self.bytes(length)?;
        self.stack.push(if length > 8 {
            Value::Float(number::float_of_bytes(bytes))
        } else {
            let negative = bytes.last().is_some_and(|&byte| byte >= 0x80);
            let mut padded = [if negative { 0xff } else { 0 }; 8];
            padded[..length].copy_from_slice(bytes);
            Value::Integer(i64::from_le_bytes(padded))
        });
        Ok(())
    }

    fn characters(&mut self, length: usize) -> Result<(), String> {
        let text = self.bytes(length)?;
        self.stack.push(Value::Text(text));
        Ok(())
    }

    fn pop(&mut self) -> Result<Value<'a>, String> {
        let bottom = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= bottom {
            return Err(SHORT.into());
        }
        Ok(self.stack.pop().expect("not empty"))
    }

    fn marked(&mut self) -> Result<Vec<Value<'a>>, String> {
        let mark = self.marks.pop().ok_or(SHORT)?;
        if mark > self.stack.len() {
            return Err(SHORT.into());
        }
        Ok(self.stack.split_off(mark))
    }

    fn list(&mut self, items: Vec<Value<'a>>) {
        self.stack.push(Value::List(self.lists.len()));
        self.lists.push(items);
    }

    fn tuple(&mut self, items: Vec<Value<'a>>) {
        self.stack.push(Value::Tuple(self.lists.len()));
        self.lists.push(items);
    }

    fn extend(&mut self, items: Vec<Value<'a>>) -> Result<(), String> {
        match self.stack.last() {
            Some(&Value::List(n)) => {
                self.lists[n].extend(items);
                Ok(())
            }
            Some(Value::Other) => Ok(()),
            _ => Err("a pickle that appends to what is no list".into()),
        }
    }

    /// Picklers use consecutive places. A distant place would only need memory.
    fn remember(&mut self, place: usize) -> Result<(), String> {
        let value = *self.stack.last().ok_or(SHORT)?;
        if place > self.at {
            return Err("a pickle that remembers in a place far beyond its length".into());
        }
        if place >= self.memo.len() {
            self.memo.resize(place + 1, Value::Nothing);
        }
        self.memo[place] = value;
        Ok(())
    }

    fn recall(&mut self, place: usize) -> Result<(), String> {
        let value = *self
            .memo
            .get(place)
            .ok_or("a pickle that recalls what it did not remember")?;
        self.stack.push(value);
        Ok(())
    }
}

impl Value<'_> {
    /// Name of the type in Python.
    fn kind(self) -> &'static str {
        match self {
            Value::Nothing => "None",
            Value::Boolean(_) => "bool",
            Value::Integer(_) => "int",
            Value::Float(_) => "float",
            Value::Text(_) | Value::Escaped(_) => "str",
            Value::List(_) => "list",
            Value::Tuple(_) => "tuple",
            Value::Other => "object",
        }
    }
}

/// Decode the escapes of a text in protocol 0 to UTF-8: Python's `raw-unicode-escape`, or those of `repr`. Invalid
/// escapes stay unchanged.
fn unescaped(text: &[u8], raw: bool) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut at = 0;
    let put = |code: u32, decoded: &mut Vec<u8>| match char::from_u32(code) {
        Some(c) => decoded.extend(c.encode_utf8(&mut [0; 4]).bytes()),
        None => decoded.push(b'?'),
    };
    while at < text.len() {
        let (byte, next) = (text[at], text.get(at + 1).copied());
        at += 1;
        if byte != b'\\' || next.is_none() {
            if raw {
                put(u32::from(byte), &mut decoded);
            } else {
                decoded.push(byte);
            }
            continue;
        }
        let next = next.unwrap_or_default();
        let digits = match next {
            b'u' if raw => 4,
            b'U' if raw => 8,
            b'x' if !raw => 2,
            _ => 0,
        };
        let code = text
            .get(at + 1..at + 1 + digits)
            .filter(|digits| !digits.is_empty())
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u32::from_str_radix(digits, 16).ok());
        match (code, next) {
            (Some(code), _) if raw => put(code, &mut decoded),
            (Some(code), _) => decoded.push(code as u8),
            (None, b'\\' | b'\'' | b'"') if !raw => decoded.push(next),
            (None, b'n') if !raw => decoded.push(b'\n'),
            (None, b'r') if !raw => decoded.push(b'\r'),
            (None, b't') if !raw => decoded.push(b'\t'),
            (None, _) => {
                decoded.push(byte);
                continue;
            }
        }
        at += 1 + if code.is_some() { digits } else { 0 };
    }
    decoded
}

fn index(text: &[u8]) -> Result<usize, String> {
    let place = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok());
    place.ok_or_else(|| "a pickle with a place that is no number".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `[("a", (1, True)), ("b", (2, None)), ("c", (3, {1: 2})), ("d", (4, 2 ** 70)), ("e", 5), ("f", (6, x.y(1)))]`
    #[test]
    fn invalid_entries_do_not_affect_others() {
        let data = b"\x80\x02](X\x01\x00\x00\x00aK\x01\x88\x86\x86X\x01\x00\x00\x00bK\x02N\x86\x86\
            X\x01\x00\x00\x00cK\x03}K\x01K\x02s\x86\x86X\x01\x00\x00\x00dK\x04\x8a\x09\
            \x00\x00\x00\x00\x00\x00\x00\x00\x40\x86\x86X\x01\x00\x00\x00eK\x05\x86\
            X\x01\x00\x00\x00fK\x06cx\ny\nK\x01\x85R\x86\x86e.";
        let mut reader = Reader::new(10, true);
        read(&mut reader, data, 0).unwrap();
        let batch = reader.take();
        let values: Vec<f64> = batch
            .bits
            .iter()
            .map(|&b| f64::from_bits(b as u64))
            .collect();
        assert_eq!(values, [1.0, 2_f64.powi(70)]);
        assert_eq!(batch.refused[&Refusal::Malformed], 4);
        let kinds: Vec<&str> = batch
            .messages
            .iter()
            .map(|(_, what)| what.as_str())
            .collect();
        assert!(
            kinds[0].contains("None") && kinds[1].contains("object"),
            "{kinds:?}"
        );
    }

    #[test]
    fn texts_of_protocol_0_are_unescaped() {
        assert_eq!(
            unescaped(b"a\\u00e9\xe9\\n", true),
            "a\u{e9}\u{e9}\\n".as_bytes()
        );
        assert_eq!(unescaped(b"a\\\\\\'\\x41\\q\\", false), b"a\\'A\\q\\");
    }

    #[test]
    fn malicious_pickles_are_refused() {
        let wrong: [&[u8]; 9] = [
            b"cos\nsystem\n(S'true'\ntR.",
            b"\x80\x02]r\xff\xff\xff\xff.",
            b"\x80\x02]\x8b\xff\xff\xff\x7f",
            b"]",
            b".",
            b"t.",
            b"K\x01.",
            b"(]ae.",
            b"X\xff\xff\xff\xff",
        ];
        for data in wrong {
            let mut reader = Reader::new(10, true);
            assert!(read(&mut reader, data, 0).is_err(), "{data:?}");
        }
        // a list that contains itself, a thousand times
        let mut data = b"]q\x00".to_vec();
        for _ in 0..1000 {
            data.extend(b"h\x00a");
        }
        data.push(b'.');
        let mut reader = Reader::new(10, true);
        read(&mut reader, &data, 0).unwrap();
        assert_eq!(reader.take().refused[&Refusal::Malformed], 1000);
    }
}

//! Graphite's pickle protocol, restricted: a list of `(path, (time, value))` and nothing else.
//!
//! A pickle is a program for a stack machine. This one has only the operations that make numbers, texts, lists and
//! tuples: none that finds a class or calls something exists here. Values are kept once and named by number, so
//! that a list which holds itself, or another many times over, costs nothing.
//!
//! Source: Python's `pickletools`; "The pickle protocol" of Graphite 1.1.

use crate::columns::{Reader, Refusal};
use crate::graphite;

/// Operations of one pickle.
const MOST_STEPS: usize = 8_000_000;

#[derive(Clone, Copy, Debug)]
enum Value<'a> {
    Nothing,
    Integer(i64),
    Float(f64),
    Text(&'a [u8]),
    List(usize),
    Tuple(usize),
}

/// Reads one pickle, without the length before it. The error says why it is none.
pub fn read(reader: &mut Reader, data: &[u8], now_ns: i64) -> Result<(), String> {
    let mut machine = Machine {
        data,
        at: 0,
        stack: Vec::new(),
        marks: Vec::new(),
        lists: Vec::new(),
        memo: Vec::new(),
    };
    let Value::List(all) = machine.run()? else {
        return Err("a pickle of something other than a list".into());
    };
    for (number, &entry) in machine.lists[all].iter().enumerate() {
        let number = number + 1;
        match machine.point(entry) {
            Some((path, time, value)) => {
                let ns = match time {
                    Value::Integer(s) => s.checked_mul(1_000_000_000),
                    Value::Float(s) if s.abs() < 9.2e9 => Some((s * 1e9).round() as i64),
                    _ => None,
                };
                let value = match value {
                    Value::Integer(value) => Some(value as f64),
                    Value::Float(value) => Some(value),
                    // what carbon's own relay sends of a text
                    Value::Text(text) => crate::number::float(text),
                    _ => None,
                };
                let taken = match (ns, value) {
                    (Some(ns), Some(value)) => {
                        graphite::point(reader, number, path, ns, now_ns, value)
                    }
                    _ => Err((
                        Refusal::Malformed,
                        "a time or a value that is no number".into(),
                    )),
                };
                if let Err((why, what)) = taken {
                    reader.refuse(number, why, &what);
                }
            }
            None => reader.refuse(
                number,
                Refusal::Malformed,
                "an entry other than (path, (time, value))",
            ),
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
    memo: Vec<Value<'a>>,
}

impl<'a> Machine<'a> {
    fn point(&self, entry: Value<'a>) -> Option<(&'a [u8], Value<'a>, Value<'a>)> {
        let [Value::Text(path), inner] = self.pair(entry)? else {
            return None;
        };
        let [time, value] = self.pair(inner)?;
        Some((path, time, value))
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
                    let items = self.stack.split_off(from.ok_or("a pickle that takes more than it has")?);
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
                    let bytes = self.bytes(length)?;
                    if length > 8 {
                        return Err("a pickle with a number of more than 64 bits".into());
                    }
                    let negative = bytes.last().is_some_and(|&byte| byte >= 0x80);
                    let mut whole = [if negative { 0xff } else { 0 }; 8];
                    whole[..length].copy_from_slice(bytes);
                    self.stack.push(Value::Integer(i64::from_le_bytes(whole)));
                }
                b'G' => {
                    let value = self.number::<8>().map(f64::from_be_bytes)?;
                    self.stack.push(Value::Float(value));
                }
                b'I' | b'L' => {
                    let text = self.line()?;
                    let digits = text.strip_suffix(b"L").unwrap_or(text);
                    let value = std::str::from_utf8(digits).ok().and_then(|d| d.parse().ok());
                    self.stack.push(Value::Integer(value.ok_or("a pickle with a number that is none")?));
                }
                b'F' => {
                    let value = crate::number::float(self.line()?);
                    self.stack.push(Value::Float(value.ok_or("a pickle with a number that is none")?));
                }
                b'U' | 0x8c | b'C' => {
                    let length = usize::from(self.bytes(1)?[0]);
                    self.text(length)?;
                }
                b'X' | b'T' | b'B' => {
                    let length = self.number::<4>().map(u32::from_le_bytes)? as usize;
                    self.text(length)?;
                }
                b'V' | b'S' => {
                    let text = self.line()?;
                    let quoted = |q: &[u8]| text.len() >= 2 && text.starts_with(q) && text.ends_with(q);
                    let inside = if operation == b'S' && (quoted(b"'") || quoted(b"\"")) {
                        &text[1..text.len() - 1]
                    } else {
                        text
                    };
                    if inside.contains(&b'\\') {
                        return Err("a pickle with a text in escapes".into());
                    }
                    self.stack.push(Value::Text(inside));
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
                        "a pickle with the operation {other:#04x}, which makes no number, text, list or tuple"
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
        let found = &self.data[self.at..end];
        self.at = end;
        Ok(found)
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

    fn text(&mut self, length: usize) -> Result<(), String> {
        let text = self.bytes(length)?;
        self.stack.push(Value::Text(text));
        Ok(())
    }

    fn pop(&mut self) -> Result<Value<'a>, String> {
        let bottom = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= bottom {
            return Err("a pickle that takes more than it has".into());
        }
        Ok(self.stack.pop().expect("not empty"))
    }

    fn marked(&mut self) -> Result<Vec<Value<'a>>, String> {
        let mark = self
            .marks
            .pop()
            .ok_or("a pickle that takes more than it has")?;
        if mark > self.stack.len() {
            return Err("a pickle that takes more than it has".into());
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
            _ => Err("a pickle that appends to what is no list".into()),
        }
    }

    /// Places are given one after the other by every pickler; a far one would only take memory.
    fn remember(&mut self, place: usize) -> Result<(), String> {
        let value = *self
            .stack
            .last()
            .ok_or("a pickle that takes more than it has")?;
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

fn index(text: &[u8]) -> Result<usize, String> {
    let place = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok());
    place.ok_or_else(|| "a pickle with a place that is no number".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_called_and_nothing_grows() {
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
        // a list in itself, a thousand times
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

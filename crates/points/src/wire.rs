//! Wire format of protocol buffers, limited to numbers, texts and nested messages.
//!
//! Fields are not copied: a message of many empty fields needs no memory beyond its own.

/// Content of a field.
#[derive(Clone, Copy, Debug)]
pub enum Field<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32,
}

/// Iterator over the fields of a message, by number. It ends after an error, which describes the problem.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Field<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Result<(u32, Field<'a>), String> {
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| "a field's number out of range")?;
        let field = match tag & 7 {
            0 => Field::Varint(self.varint()?),
            1 => Field::Fixed64(u64::from_le_bytes(self.take(8)?.try_into().expect("eight"))),
            2 => {
                let length =
                    usize::try_from(self.varint()?).map_err(|_| "a length out of range")?;
                Field::Bytes(self.take(length)?)
            }
            5 => {
                self.take(4)?;
                Field::Fixed32
            }
            kind => return Err(format!("a field of wire type {kind}")),
        };
        Ok((number, field))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        if length > self.0.len() {
            return Err("a message that ends in the middle".into());
        }
        let (content, rest) = self.0.split_at(length);
        self.0 = rest;
        Ok(content)
    }

    /// Read a number, as in a packed field.
    pub fn varint(&mut self) -> Result<u64, String> {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let byte = self.take(1)?[0];
            if shift == 63 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("a number of more than 64 bits".into())
    }
}

/// Append a number.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Append a field of bytes.
pub fn put_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    put_varint(out, u64::from(number << 3 | 2));
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

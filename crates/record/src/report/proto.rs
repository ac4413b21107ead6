//! As much of the protobuf wire format as a trace needs: varints, and fields of bytes.

/// A message that is being written.
#[derive(Clone, Debug, Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    /// A field of an unsigned number, an enum or a bool.
    pub(super) fn number(mut self, field: u32, value: u64) -> Self {
        self.varint(u64::from(field) << 3);
        self.varint(value);
        self
    }

    /// A string.
    pub(super) fn text(self, field: u32, value: &str) -> Self {
        self.bytes(field, value.as_bytes())
    }

    /// A message inside this one.
    pub(super) fn inside(self, field: u32, message: &Self) -> Self {
        self.bytes(field, &message.0)
    }

    /// What is on the wire.
    pub(super) fn done(&self) -> &[u8] {
        &self.0
    }

    fn bytes(mut self, field: u32, value: &[u8]) -> Self {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of the format's own description.
    #[test]
    fn it_is_the_wire_format() {
        assert_eq!(Message::default().number(1, 150).done(), [0x08, 0x96, 0x01]);
        assert_eq!(Message::default().text(2, "testing").done(), b"\x12\x07testing");
        assert_eq!(Message::default().inside(3, &Message::default().number(1, 150)).done(), b"\x1a\x03\x08\x96\x01");
        assert_eq!(Message::default().number(11, u64::MAX).done().len(), 11);
    }
}

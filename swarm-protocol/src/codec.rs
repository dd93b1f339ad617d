//! Bytes to frames and back: one JSON object a line, with a cap on its size. Pure.

use serde::{Serialize, de::DeserializeOwned};

/// The longest line either side accepts, in bytes. The largest honest frame is an end record with its
/// result and 200 commands of 2,000 characters.
pub const MAX_FRAME_BYTES: usize = 8 * 1024 * 1024;

/// Why bytes are no frame.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// Longer than [`MAX_FRAME_BYTES`].
    #[error("a frame of more than {MAX_FRAME_BYTES} bytes")]
    TooLong,
    /// Not the JSON of a frame this version knows.
    #[error("a line that is no frame of this version")]
    Malformed(#[from] serde_json::Error),
}

/// The line of a frame, its line break included.
pub fn encode<F: Serialize>(frame: &F) -> Result<Vec<u8>, CodecError> {
    let mut line = serde_json::to_vec(frame)?;
    line.push(b'\n');
    if line.len() > MAX_FRAME_BYTES { Err(CodecError::TooLong) } else { Ok(line) }
}

/// Collects bytes as they come and gives whole frames.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// How far `buffer` was searched for a line break already: parsing stays linear in what arrives.
    searched: usize,
}

impl Decoder {
    /// Adds bytes as they came from the socket.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, if one is there.
    pub fn next_frame<F: DeserializeOwned>(&mut self) -> Result<Option<F>, CodecError> {
        let Some(found) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.buffer.len();
            return if self.buffer.len() > MAX_FRAME_BYTES { Err(CodecError::TooLong) } else { Ok(None) };
        };
        let end = self.searched + found;
        let line: Vec<u8> = self.buffer.drain(..=end).collect();
        self.searched = 0;
        if line.len() > MAX_FRAME_BYTES {
            return Err(CodecError::TooLong);
        }
        Ok(Some(serde_json::from_slice(&line)?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn frames_survive_any_cutting(texts in proptest::collection::vec(".*", 1..6), cut in 1_usize..7) {
            let mut bytes = Vec::new();
            for text in &texts {
                bytes.extend(encode(text).unwrap());
            }
            let mut decoder = Decoder::default();
            let mut seen: Vec<String> = Vec::new();
            for piece in bytes.chunks(cut) {
                decoder.push(piece);
                while let Some(text) = decoder.next_frame().unwrap() {
                    seen.push(text);
                }
            }
            prop_assert_eq!(seen, texts);
        }
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut decoder = Decoder::default();
        decoder.push(&vec![b'x'; MAX_FRAME_BYTES + 1]);
        assert!(matches!(decoder.next_frame::<String>(), Err(CodecError::TooLong)));
    }
}

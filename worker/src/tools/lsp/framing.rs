//! Messages of the language server protocol on a stream: a head with a length, then JSON.

use serde_json::Value;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};

/// A message that is longer is no answer to anything we ask.
const MAX_BYTES: usize = 32 * 1024 * 1024;
/// Of a head.
const MAX_HEAD_BYTES: u64 = 4 * 1024;

/// Why no further message can be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    #[error("it closed its output")]
    End,
    #[error("its output cannot be read")]
    Read(#[from] std::io::Error),
    #[error("what it sent is no message of the protocol")]
    Head,
    #[error("it sent a message of {0} bytes")]
    TooLarge(usize),
    #[error("it sent a message that is no JSON")]
    Json(#[from] serde_json::Error),
}

/// The next message. Not cancel-safe: what was read of a message is lost.
pub(super) async fn read(stream: &mut (impl AsyncBufRead + Unpin)) -> Result<Value, FrameError> {
    let mut length = None;
    let mut head = stream.take(MAX_HEAD_BYTES);
    loop {
        let mut line = Vec::new();
        head.read_until(b'\n', &mut line).await?;
        if line.is_empty() && length.is_none() && head.limit() == MAX_HEAD_BYTES {
            return Err(FrameError::End);
        }
        let Some(line) = line.strip_suffix(b"\n") else { return Err(FrameError::Head) };
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            break;
        }
        let line = std::str::from_utf8(line).map_err(|_| FrameError::Head)?;
        let (name, value) = line.split_once(':').ok_or(FrameError::Head)?;
        if name.trim().eq_ignore_ascii_case("content-length") {
            length = Some(value.trim().parse::<usize>().map_err(|_| FrameError::Head)?);
        }
    }
    let length = length.ok_or(FrameError::Head)?;
    if length > MAX_BYTES {
        return Err(FrameError::TooLarge(length));
    }
    let mut body = Vec::new();

    if stream.take(length as u64).read_to_end(&mut body).await? < length {
        return Err(FrameError::End);
    }
    Ok(serde_json::from_slice(&body)?)
}

/// A message as it goes out.
pub(super) fn framed(message: &Value) -> Vec<u8> {
    let body = message.to_string();
    format!("Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    async fn all(mut bytes: &[u8]) -> (Vec<Value>, String) {
        let mut messages = Vec::new();
        loop {
            match read(&mut bytes).await {
                Ok(message) => messages.push(message),
                Err(error) => return (messages, error.to_string()),
            }
        }
    }

    #[tokio::test]
    async fn messages_are_read_back_as_they_were_written() {
        let (first, second) = (json!({"id": 1, "text": "ä\n"}), json!([]));
        let bytes = [framed(&first), framed(&second)].concat();
        assert_eq!(all(&bytes).await, (vec![first, second], "it closed its output".to_owned()));
        let typed = b"content-length: 2\r\nContent-Type: application/vscode-jsonrpc; charset=utf-8\r\n\r\n{}";
        assert_eq!(all(typed).await.0, [json!({})]);
    }

    #[tokio::test]
    async fn what_is_no_message_ends_the_stream_with_a_word() {
        for (bytes, problem) in [
            (&b"Hello, I am a banner\n"[..], "no message of the protocol"),
            (b"Content-Length: 5\r\n\r\n{}", "closed its output"),
            (b"Content-Length: -1\r\n\r\n", "no message of the protocol"),
            (b"\r\n{}", "no message of the protocol"),
            (b"Content-Length: 2", "no message of the protocol"),
            (b"Content-Length: 99999999999\r\n\r\n", "99999999999 bytes"),
            (b"Content-Length: 2\r\n\r\n}{", "no JSON"),
        ] {
            let (messages, said) = all(bytes).await;
            assert!(messages.is_empty() && said.contains(problem), "{said}");
        }
        let endless = vec![b'x'; 100_000];
        assert!(all(&endless).await.1.contains("no message of the protocol"));
    }
}

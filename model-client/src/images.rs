//! Images on their way to a provider: one that no provider would take becomes a line of text, since a bad
//! image in history would fail every later request.

use base64::Engine as _;

/// Why an image is not sent, if it is not.
pub(crate) fn problem(media_type: &str, data: &str) -> Option<String> {
    // The first bytes tell the format; 24 characters are 18 bytes.
    let start = data.get(..24).unwrap_or(data);
    let Ok(start) = base64::engine::general_purpose::STANDARD.decode(start) else {
        return Some("[image left out: its data is not base64]".to_owned());
    };
    if start.is_empty() {
        return Some("[image left out: it is empty]".to_owned());
    }
    let fits = match media_type {
        "image/png" => start.starts_with(b"\x89PNG\r\n\x1a\n"),
        "image/jpeg" => start.starts_with(b"\xff\xd8\xff"),
        "image/gif" => start.starts_with(b"GIF8"),
        "image/webp" => start.starts_with(b"RIFF") && start.get(8..12) == Some(b"WEBP"),
        other => return Some(format!("[image left out: {other} is no format that models take]")),
    };
    (!fits).then(|| format!("[image left out: its data is not {media_type}]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PNG: &str =
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

    #[test]
    fn only_whole_images_of_known_formats_pass() {
        assert_eq!(problem("image/png", PNG), None);
        for (media_type, data) in [
            ("image/png", ""),
            ("image/png", "AAAA"),
            ("image/jpeg", PNG),
            ("image/tiff", PNG),
            ("image/png", "é"),
        ] {
            assert!(problem(media_type, data).is_some(), "{media_type} {data}");
        }
    }
}

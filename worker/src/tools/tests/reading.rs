//! What Read shows beside plain text.

use super::*;
use crate::tools::read::drawn;

#[tokio::test]
async fn what_was_not_shown_was_not_read() {
    let place = Place::new();
    place.put("f", "line\n".repeat(50));
    let past = place.call("Read", json!({"file_path": "f", "offset": 9_999})).await;
    says(&past, true, "past its end");
    let written = place.call("Write", json!({"file_path": "f", "content": "x\n"})).await;
    says(&written, true, "has not been read yet");
}

#[tokio::test]
async fn pictures_are_shown_and_broken_ones_are_not_sent() {
    let place = Place::new();
    place.put("p.png", drawn(20, 10, image::ImageFormat::Png));
    let output = place.read("p.png").await;
    assert!(matches!(&output.content[0], ResultBlock::Image { media_type, .. } if media_type == "image/png"));
    assert_eq!(output.content[1], ResultBlock::text("[p.png: PNG, 20 x 10 pixels]"));
    place.put("large.jpg", drawn(1_600, 40, image::ImageFormat::Jpeg));
    let output = place.read("large.jpg").await;
    let ResultBlock::Text { text } = &output.content[1] else { panic!("two pictures") };
    assert!(text.contains("JPEG, 1600 x 40 pixels") && text.contains("shown as 1568 x 39"), "{text}");
    place.put("broken.png", b"\x89PNG\r\n\x1a\n\0\0");
    says(&place.read("broken.png").await, true, "broken.png begins like PNG (10 bytes), but cannot be shown");
}

#[tokio::test]
async fn what_is_no_text_is_refused_with_its_kind_and_size() {
    let place = Place::new();
    for (content, words) in [
        (&b"\x7fELF\x02\x01"[..], "(a program, 6 bytes)"),
        (b"PK\x03\x04rest", "(a zip archive, 8 bytes)"),
        (b"\x1f\x8b\x08", "(gzip data, 3 bytes)"),
        (b"a\0b", "(no text, 3 bytes)"),
        (b"\xff\xfe\x3d\xd8", "begins like UTF-16"),
    ] {
        place.put("f", content);
        says(&place.read("f").await, true, words);
    }
}

//! A picture for the model: looked through before it is sent, since one that no provider takes would fail every
//! later request, and made smaller where it is larger than models see.

use std::io::Cursor;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use image::{DynamicImage, ImageDecoder as _, ImageFormat, ImageReader, Limits, imageops::FilterType};
use query_engine::ports::ToolOutput;
use swarm_protocol::ResultBlock;

/// Providers take 5 MB of base64.
const MAX_BYTES: usize = 3_750_000;
/// Pixels of the longer side: models see no more of a picture, and some refuse many larger ones at once.
const MAX_SIDE: u32 = 1_568;
/// What a picture may claim: more is a bomb, or of no use.
const MAX_CLAIMED_SIDE: u32 = 32_768;
const MAX_DECODED_BYTES: u64 = 256 * 1024 * 1024;
/// Of 100, for a picture that is made smaller.
const JPEG_QUALITY: u8 = 85;

/// A picture that can be sent.
pub(super) struct Picture {
    pub(super) block: ResultBlock,
    /// How it was, and how it is shown.
    pub(super) note: String,
}

/// The format of a picture that models take, by its first bytes.
pub(super) fn format(bytes: &[u8]) -> Option<ImageFormat> {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => Some(ImageFormat::Png),
        [0xff, 0xd8, 0xff, ..] => Some(ImageFormat::Jpeg),
        [b'G', b'I', b'F', b'8', ..] => Some(ImageFormat::Gif),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(ImageFormat::WebP),
        _ => None,
    }
}

/// The answer that shows a picture.
pub(super) fn shown(bytes: &[u8], format: ImageFormat, given: &str) -> ToolOutput {
    match picture(bytes, format) {
        Ok(Picture { block, note }) => {
            let mut answer = ToolOutput::text(format!("[{given}: {note}]"));
            answer.content.insert(0, block);
            answer
        }
        Err(problem) => ToolOutput::error(format!(
            "{given} begins like {} ({} bytes), but cannot be shown: {problem}.",
            name(format),
            bytes.len()
        )),
    }
}

/// The picture as it is sent; an error says why it is not.
pub(super) fn picture(bytes: &[u8], format: ImageFormat) -> Result<Picture, String> {
    let (image, width, height) = decoded(bytes, format).map_err(|error| error.to_string())?;
    let name = name(format);
    if width.max(height) <= MAX_SIDE && bytes.len() <= MAX_BYTES {
        let block = block(format, bytes);
        return Ok(Picture { block, note: format!("{name}, {width} x {height} pixels") });
    }
    let small = if image.width().max(image.height()) > MAX_SIDE {
        image.resize(MAX_SIDE, MAX_SIDE, FilterType::CatmullRom)
    } else {
        image
    };
    let (format, small_bytes) = encoded(&small, format)?;
    let note = format!(
        "{name}, {width} x {height} pixels, {} bytes, shown as {} x {}",
        bytes.len(),
        small.width(),
        small.height()
    );
    Ok(Picture { block: block(format, &small_bytes), note })
}

/// The pixels, upright, and the size as the file has it.
fn decoded(bytes: &[u8], format: ImageFormat) -> Result<(DynamicImage, u32, u32), image::ImageError> {
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_CLAIMED_SIDE);
    limits.max_image_height = Some(MAX_CLAIMED_SIDE);
    limits.max_alloc = Some(MAX_DECODED_BYTES);
    reader.limits(limits);
    let mut decoder = reader.into_decoder()?;
    let (width, height) = decoder.dimensions();
    let orientation = decoder.orientation()?;
    let mut image = DynamicImage::from_decoder(decoder)?;
    image.apply_orientation(orientation);
    Ok((image, width, height))
}

/// Photographs as JPEG, the others without loss unless they are too large so.
fn encoded(image: &DynamicImage, format: ImageFormat) -> Result<(ImageFormat, Vec<u8>), String> {
    if format != ImageFormat::Jpeg {
        let mut bytes = Vec::new();
        image.write_to(&mut Cursor::new(&mut bytes), ImageFormat::Png).map_err(|error| error.to_string())?;
        if bytes.len() <= MAX_BYTES {
            return Ok((ImageFormat::Png, bytes));
        }
    }
    let mut bytes = Vec::new();
    let encoder = image::codecs::jpeg::JpegEncoder::new_with_quality(&mut bytes, JPEG_QUALITY);
    // JPEG knows no transparency and no 16 bits.
    DynamicImage::ImageRgb8(image.to_rgb8())
        .write_with_encoder(encoder)
        .map_err(|error| error.to_string())?;
    if bytes.len() > MAX_BYTES {
        return Err(format!("it has {} bytes even when it is made smaller", bytes.len()));
    }
    Ok((ImageFormat::Jpeg, bytes))
}

fn block(format: ImageFormat, bytes: &[u8]) -> ResultBlock {
    ResultBlock::Image { media_type: format.to_mime_type().to_owned(), data: BASE64_STANDARD.encode(bytes) }
}

fn name(format: ImageFormat) -> &'static str {
    match format {
        ImageFormat::Png => "PNG",
        ImageFormat::Jpeg => "JPEG",
        ImageFormat::Gif => "GIF",
        ImageFormat::WebP => "WebP",
        _ => "an image",
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A picture of this size with something on it.
    pub(in crate::tools) fn drawn(width: u32, height: u32, format: ImageFormat) -> Vec<u8> {
        let image =
            image::RgbImage::from_fn(width, height, |x, y| image::Rgb([x as u8, y as u8, (x ^ y) as u8]));
        let mut bytes = Vec::new();
        DynamicImage::ImageRgb8(image).write_to(&mut Cursor::new(&mut bytes), format).unwrap();
        bytes
    }

    fn sent(picture: &Picture) -> (String, Vec<u8>) {
        match &picture.block {
            ResultBlock::Image { media_type, data } => {
                (media_type.clone(), BASE64_STANDARD.decode(data).unwrap())
            }
            other => panic!("no picture: {other:?}"),
        }
    }

    #[test]
    fn what_fits_is_sent_as_it_is_and_what_does_not_is_made_smaller() {
        for (image_format, media_type) in [
            (ImageFormat::Png, "image/png"),
            (ImageFormat::Jpeg, "image/jpeg"),
            (ImageFormat::Gif, "image/gif"),
            (ImageFormat::WebP, "image/webp"),
        ] {
            let bytes = drawn(40, 30, image_format);
            assert_eq!(format(&bytes), Some(image_format));
            let picture = picture(&bytes, image_format).unwrap();
            assert_eq!(sent(&picture), (media_type.to_owned(), bytes));
            assert!(picture.note.ends_with("40 x 30 pixels"), "{}", picture.note);
        }
        for (image_format, media_type) in [(ImageFormat::Png, "image/png"), (ImageFormat::Jpeg, "image/jpeg")]
        {
            let picture = picture(&drawn(1_792, 32, image_format), image_format).unwrap();
            let (sent_type, bytes) = sent(&picture);
            let small = image::load_from_memory(&bytes).unwrap();
            assert_eq!((sent_type.as_str(), small.width(), small.height()), (media_type, 1_568, 28));
            assert!(picture.note.contains("1792 x 32 pixels") && picture.note.ends_with("1568 x 28"));
        }
    }

    #[test]
    fn broken_ones_and_bombs_are_refused() {
        let whole = drawn(40, 30, ImageFormat::Png);
        assert!(picture(&whole[..whole.len() / 2], ImageFormat::Png).is_err());
        let mut bomb = whole;
        // The header's width and height; its checksum is not looked at before the size is.
        bomb[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
        assert!(picture(&bomb, ImageFormat::Png).is_err());
        let answer = shown(b"\x89PNG\r\n\x1a\n\0\0", ImageFormat::Png, "p.png");
        assert!(answer.is_error);
    }
}

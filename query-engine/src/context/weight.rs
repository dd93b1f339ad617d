//! What a text weighs: its tokens by rules that hold for all tokenizers of today, before the provider's own count
//! calibrates them (spec 3.1). Bytes alone are off by half where a conversation turns from prose to JSON or logs.
//!
//! All tokenizers cut a text into words, groups of digits, runs of punctuation and runs of blanks first, and then make
//! one token or a few of each. So these are counted, in one pass.

use base64::Engine as _;

/// Weights are in hundredths of a token, so that they add up without rounding.
pub const TOKEN: u64 = 100;
/// The most an image counts, in tokens: larger ones are scaled down by the provider.
pub const MAX_IMAGE_TOKENS: u64 = 1_600;

/// A word of up to [`SHORT_WORD`] letters; a capital within one begins the next.
const WORD: u64 = 95;
/// Letters of a word that cost nothing more.
const SHORT_WORD: u32 = 6;
/// Each letter after them.
const MORE_LETTERS: u64 = 30;
/// Three digits.
const DIGITS: u64 = 110;
/// A run of punctuation.
const PUNCTUATION: u64 = 87;
/// Two blanks and more within a line; one goes with the word after it, and a line end with what stands before it.
const BLANKS: u64 = 120;
/// A character of Chinese or Japanese. Here, with Korean and other alphabets, tokenizers differ most; the weights stand
/// in the middle between those that know such scripts well and those that do not.
const WIDE: u64 = 84;
/// A syllable of Korean.
const HANGUL: u64 = 89;
/// A letter of another alphabet.
const OTHER_LETTER: u64 = 34;
/// Where scripts with a sound or word in each character begin.
const FIRST_WIDE: char = '\u{1100}';

/// Pixels of a token (Anthropic's rule), and the longest edge that is not scaled down.
const PIXELS_PER_TOKEN: u64 = 750;
const LONGEST_EDGE: u64 = 1_568;
/// Characters of base64 that hold the header of nearly every image, metadata of a camera included; a multiple of four.
const HEADER_CHARS: usize = 64 * 1024;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Lower,
    Upper,
    Digit,
    Blank,
    LineEnd,
    Punctuation,
    Wide,
    Hangul,
    Other,
}

fn class(character: char) -> Class {
    match character {
        'a'..='z' => Class::Lower,
        'A'..='Z' => Class::Upper,
        '0'..='9' => Class::Digit,
        ' ' | '\t' => Class::Blank,
        '\n' | '\r' => Class::LineEnd,
        '\0'..='\x7f' => Class::Punctuation,
        '\u{ac00}'..='\u{d7a3}' => Class::Hangul,
        FIRST_WIDE.. => Class::Wide,
        _ => Class::Other,
    }
}

/// The weight of a text.
pub fn text(text: &str) -> u64 {
    let mut weight = 0;
    let mut last = Class::LineEnd;
    // How many characters the open word or run has.
    let mut run = 0_u32;
    for character in text.chars() {
        let class = class(character);
        let goes_on = class == last || (last, class) == (Class::Upper, Class::Lower);
        run = if goes_on { run + 1 } else { 1 };
        last = class;
        weight += match class {
            Class::Lower | Class::Upper if run == 1 => WORD,
            Class::Lower | Class::Upper if run > SHORT_WORD => MORE_LETTERS,
            Class::Digit if run % 3 == 1 => DIGITS,
            Class::Punctuation if run == 1 => PUNCTUATION,
            Class::Blank if run == 2 => BLANKS,
            Class::Wide => WIDE,
            Class::Hangul => HANGUL,
            Class::Other => OTHER_LETTER,
            Class::Lower
            | Class::Upper
            | Class::Digit
            | Class::Punctuation
            | Class::Blank
            | Class::LineEnd => 0,
        };
    }
    weight
}

/// The weight of an image in base64, by its size in pixels where its header tells.
pub fn image(data: &str) -> u64 {
    let header = data.get(..HEADER_CHARS).unwrap_or(data);
    let bytes = base64::engine::general_purpose::STANDARD.decode(header).ok();
    let size = bytes.and_then(|bytes| imagesize::blob_size(&bytes).ok());
    let tokens = size.map_or(MAX_IMAGE_TOKENS, |size| image_tokens(size.width as u64, size.height as u64));
    tokens * TOKEN
}

fn image_tokens(width: u64, height: u64) -> u64 {
    // Beyond any picture: no product below overflows.
    let (width, height) = (width.min(1 << 20), height.min(1 << 20));
    let longest = width.max(height).max(LONGEST_EDGE);
    let pixels = width * height * LONGEST_EDGE * LONGEST_EDGE / (longest * longest);
    pixels.div_ceil(PIXELS_PER_TOKEN).clamp(1, MAX_IMAGE_TOKENS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_digits_punctuation_and_scripts() {
        let check = |given: &str, expected: u64| assert_eq!(text(given), expected, "{given:?}");
        check("", 0);
        check("word", WORD);
        check("a word", 2 * WORD);
        check("internationalisation", WORD + 14 * MORE_LETTERS);
        check("maxResultSize", 3 * WORD);
        check("HTTPServer", WORD + 4 * MORE_LETTERS);
        check("12", DIGITS);
        check("1234567", 3 * DIGITS);
        check("a\n\n    b", 2 * WORD + BLANKS);
        check("f(x);", 2 * WORD + 2 * PUNCTUATION);
        check("你好。", 3 * WIDE);
        check("서버", 2 * HANGUL);
        check("да", 2 * OTHER_LETTER);
    }

    #[test]
    fn images_count_by_size_and_no_more_than_the_largest() {
        let check = |width, height, expected| assert_eq!(image_tokens(width, height), expected);
        check(1, 1, 1);
        check(200, 200, 54);
        check(1_000, 1_000, 1_334);
        check(1_092, 1_092, 1_590);
        check(4_000, 4_000, MAX_IMAGE_TOKENS);
        check(3_136, 100, 105);
        check(u64::MAX, u64::MAX, MAX_IMAGE_TOKENS);
        check(0, 0, 1);
    }

    #[test]
    fn the_header_of_an_image_tells_its_size() {
        let encode = |bytes: &[u8]| base64::engine::general_purpose::STANDARD.encode(bytes);
        let png = |width: u32, height: u32| {
            let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
            bytes.extend(width.to_be_bytes());
            bytes.extend(height.to_be_bytes());
            bytes.extend([8, 2, 0, 0, 0]);
            bytes.resize(200_000, 0);
            bytes
        };
        assert_eq!(image(&encode(&png(200, 200))), 54 * TOKEN);
        let mut gif = b"GIF89a".to_vec();
        gif.extend([100, 0, 100, 0, 0, 0, 0]);
        assert_eq!(image(&encode(&gif)), 14 * TOKEN);
        for broken in ["", "no base64!", "AAAA"] {
            assert_eq!(image(broken), MAX_IMAGE_TOKENS * TOKEN, "{broken:?}");
        }
    }
}

//! The text of a PDF by page. A panic of the parser on one page is an answer.

use std::{
    fmt::Write as _,
    ops::RangeInclusive,
    panic::{AssertUnwindSafe, catch_unwind},
};

use pdf_extract::{Document, PlainTextOutput, output_doc_page};

/// Pages of one answer.
const MAX_PAGES: u32 = 20;
/// Bytes of one answer.
const MAX_ANSWER_BYTES: usize = 100_000;

/// These pages, or the first ones; each is given or says why it is not.
pub(super) fn text(bytes: &[u8], wanted: Option<RangeInclusive<u32>>) -> Result<String, String> {
    let mut document = Document::load_mem(bytes).map_err(|error| error.to_string())?;
    if document.is_encrypted() && document.decrypt("").is_err() {
        return Err("it is encrypted and needs a password".to_owned());
    }
    let total = u32::try_from(document.get_pages().len()).unwrap_or(u32::MAX);
    let wanted = wanted.unwrap_or(1..=total);
    if total == 0 {
        return Err("it has no pages".to_owned());
    }
    if *wanted.start() > total {
        return Err(format!("it has {total} pages; {} is past its end", wanted.start()));
    }
    let end = (*wanted.end()).min(total);
    let last = end.min(wanted.start().saturating_add(MAX_PAGES - 1));
    let mut answer = String::new();
    let mut shown = *wanted.start();
    for page in *wanted.start()..=last {
        if page > *wanted.start() && answer.len() > MAX_ANSWER_BYTES {
            break;
        }
        shown = page;
        let _ = writeln!(answer, "[page {page} of {total}]");
        match page_text(&document, page) {
            Ok(text) if text.trim().is_empty() => answer.push_str("(no text; it may be a picture)\n"),
            Ok(text) => push_bounded(&mut answer, text.trim()),
            Err(problem) => {
                let _ = writeln!(answer, "(this page cannot be read: {problem})");
            }
        }
    }
    if shown < end {
        let _ = write!(answer, "[go on with pages \"{}-{end}\", at most {MAX_PAGES} at once]", shown + 1);
    } else if end < total {
        let _ = write!(answer, "[{total} pages in all]");
    }
    Ok(answer)
}

/// One page that cannot be read leaves the others readable.
fn page_text(document: &Document, page: u32) -> Result<String, String> {
    let read = || {
        let mut text = String::new();
        let mut output = PlainTextOutput::new(&mut text);
        output_doc_page(document, &mut output, page).map(|()| text).map_err(|error| error.to_string())
    };
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err("the parser failed inside".to_owned()))
}

fn push_bounded(answer: &mut String, text: &str) {
    let room = MAX_ANSWER_BYTES.saturating_sub(answer.len()).max(1_000);
    let cut = text.floor_char_boundary(room);
    answer.push_str(&text[..cut].replace('\0', ""));
    answer.push('\n');
    if cut < text.len() {
        let _ = writeln!(answer, "[{} bytes of this page are left out]", text.len() - cut);
    }
}

#[cfg(test)]
mod tests {
    use pdf_extract::{
        Dictionary, EncryptionState, EncryptionVersion, Object, Permissions, Stream, StringFormat, dictionary,
    };

    use super::*;

    /// A document with these pages.
    fn document(pages: &[String]) -> Document {
        let mut document = Document::with_version("1.5");
        let root = document.new_object_id();
        let font = document.add_object(dictionary! {
            "Type" => "Font", "Subtype" => "Type1", "BaseFont" => "Helvetica", "Encoding" => "WinAnsiEncoding",
        });
        let kids: Vec<Object> = pages
            .iter()
            .map(|text| {
                let content = format!("BT /F1 12 Tf 50 700 Td ({text}) Tj ET");
                let content = document.add_object(Stream::new(Dictionary::new(), content.into_bytes()));
                let page = document.add_object(dictionary! {
                    "Type" => "Page", "Parent" => root, "Contents" => content,
                    "MediaBox" => vec![0.into(), 0.into(), 600.into(), 800.into()],
                    "Resources" => dictionary! { "Font" => dictionary! { "F1" => font } },
                });
                Object::Reference(page)
            })
            .collect();
        let count = kids.len() as i64;
        document.objects.insert(
            root,
            Object::Dictionary(dictionary! { "Type" => "Pages", "Kids" => kids, "Count" => count }),
        );
        let catalog = document.add_object(dictionary! { "Type" => "Catalog", "Pages" => root });
        document.trailer.set("Root", catalog);
        document
    }

    fn bytes(mut document: Document) -> Vec<u8> {
        let mut bytes = Vec::new();
        document.save_to(&mut bytes).unwrap();
        bytes
    }

    fn numbered(count: usize) -> Vec<u8> {
        bytes(document(&(1..=count).map(|page| format!("This is sheet {page}.")).collect::<Vec<_>>()))
    }

    fn read(bytes: &[u8], wanted: Option<RangeInclusive<u32>>) -> String {
        text(bytes, wanted).unwrap()
    }

    #[test]
    fn pages_are_given_by_number_twenty_at_most() {
        let text_of_three = read(&numbered(3), None);
        assert!(
            text_of_three.starts_with("[page 1 of 3]\nThis is sheet 1.\n[page 2 of 3]"),
            "{text_of_three}"
        );
        assert_eq!(
            read(&numbered(30), Some(2..=3)),
            "[page 2 of 30]\nThis is sheet 2.\n[page 3 of 30]\nThis is sheet 3.\n[30 pages in all]"
        );
        for wanted in [None, Some(1..=30), Some(1..=u32::MAX)] {
            let text = read(&numbered(30), wanted);
            assert!(text.contains("sheet 20.") && !text.contains("sheet 21."), "{text}");
            assert!(text.ends_with("[go on with pages \"21-30\", at most 20 at once]"), "{text}");
        }
        let behind = text(&numbered(3), Some(4..=4)).unwrap_err();
        assert_eq!(behind, "it has 3 pages; 4 is past its end");
    }

    #[test]
    fn broken_and_encrypted_files_say_so() {
        for broken in [b"%PDF-1.7\nnothing".to_vec(), numbered(2)[..300].to_vec()] {
            assert!(text(&broken, None).is_err());
        }
        let mut locked = document(&["secret".to_owned()]);
        let id = || Object::String(b"0123456789abcdef".to_vec(), StringFormat::Literal);
        locked.trailer.set("ID", Object::Array(vec![id(), id()]));
        let version = EncryptionVersion::V2 {
            document: &locked,
            owner_password: "owner",
            user_password: "user",
            key_length: 128,
            permissions: Permissions::all(),
        };
        let state = EncryptionState::try_from(version).unwrap();
        locked.encrypt(&state).unwrap();
        assert_eq!(text(&bytes(locked), None).unwrap_err(), "it is encrypted and needs a password");
    }

    #[test]
    fn a_page_on_which_the_parser_panics_leaves_the_others() {
        let mut both = document(&["one".to_owned(), "two".to_owned()]);
        let first = both.get_pages()[&1];
        // The library expects a box of four numbers.
        both.get_object_mut(first).unwrap().as_dict_mut().unwrap().set("MediaBox", vec![0.into()]);
        let text = read(&bytes(both), None);
        assert!(text.contains("(this page cannot be read: the parser failed inside)"), "{text}");
        assert!(text.contains("[page 2 of 2]\ntwo"), "{text}");
    }
}

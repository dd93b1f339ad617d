//! The text of a PDF by page. The parser is a library that was not made for hostile files: it runs on a thread of its
//! own with a deadline, and a panic in it is an answer.

use std::{
    fmt::Write as _,
    ops::RangeInclusive,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{self, RecvTimeoutError},
    time::{Duration, Instant},
};

use pdf_extract::{Document, PlainTextOutput, output_doc_page};
use query_engine::ports::ToolOutput;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::MAX_ANSWER_BYTES;

/// Pages of one answer.
const MAX_PAGES: u32 = 20;
/// How long a file may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// How often a cancelled call is noticed.
const LOOK: Duration = Duration::from_millis(100);
/// Files nest their objects, and the parser calls itself for each level.
const STACK_BYTES: usize = 64 * 1024 * 1024;

/// These pages, or the first ones.
pub(super) fn pages(
    bytes: Vec<u8>,
    wanted: Option<&Value>,
    given: &str,
    cancel: &CancellationToken,
) -> ToolOutput {
    let wanted = match wanted.map(range).transpose() {
        Ok(wanted) => wanted.flatten(),
        Err(problem) => return ToolOutput::error(problem),
    };
    let size = bytes.len();
    let (sender, answer) = mpsc::sync_channel(1);
    let parse = move || {
        let parsed = catch_unwind(AssertUnwindSafe(|| text(&bytes, wanted)));
        // Nobody listens any more after the deadline.
        drop(sender.send(parsed.unwrap_or_else(|_| Err("its parser failed inside".to_owned()))));
    };
    // One that hangs keeps its thread, and nothing else waits for it.
    if let Err(error) =
        std::thread::Builder::new().name("pdf".to_owned()).stack_size(STACK_BYTES).spawn(parse)
    {
        return ToolOutput::error(format!("{given} cannot be read now: {error}."));
    }
    let began = Instant::now();
    let parsed = loop {
        match answer.recv_timeout(LOOK) {
            Ok(parsed) => break parsed,
            Err(RecvTimeoutError::Timeout) if cancel.is_cancelled() => {
                break Err("the call was cancelled".to_owned());
            }
            Err(RecvTimeoutError::Timeout) if began.elapsed() < DEADLINE => {}
            Err(RecvTimeoutError::Timeout) => {
                break Err(format!("it takes longer than {} s", DEADLINE.as_secs()));
            }
            Err(RecvTimeoutError::Disconnected) => break Err("its parser ended".to_owned()),
        }
    };
    match parsed {
        Ok(text) => ToolOutput::text(text),
        Err(problem) => ToolOutput::error(format!(
            "{given} is a PDF of {size} bytes that cannot be read: {problem}. Perhaps a program in Bash can (pdftotext)."
        )),
    }
}

/// `3`, `1-5`, `7-`.
fn range(value: &Value) -> Result<Option<RangeInclusive<u32>>, String> {
    let text = match value {
        Value::Null => return Ok(None),
        Value::String(text) => text.trim().to_owned(),
        other => other.to_string(),
    };
    if text.is_empty() {
        return Ok(None);
    }
    let number = |text: &str| text.trim().parse::<u32>().ok().filter(|number| *number > 0);
    let pages = match text.split_once('-') {
        None => number(&text).map(|page| page..=page),
        Some((first, "")) => number(first).map(|first| first..=u32::MAX),
        Some((first, last)) => number(first).zip(number(last)).map(|(first, last)| first..=last),
    };
    match pages {
        Some(pages) if pages.start() <= pages.end() => Ok(Some(pages)),
        _ => Err(format!("`{text}` names no pages; write `3` or `1-5`.")),
    }
}

fn text(bytes: &[u8], wanted: Option<RangeInclusive<u32>>) -> Result<String, String> {
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
    use serde_json::json;
    use swarm_protocol::ResultBlock;

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

    fn read(bytes: Vec<u8>, wanted: Option<&str>) -> (String, bool) {
        let answer =
            pages(bytes, wanted.map(|text| json!(text)).as_ref(), "f.pdf", &CancellationToken::new());
        match &answer.content[0] {
            ResultBlock::Text { text } => (text.clone(), answer.is_error),
            other => panic!("no text: {other:?}"),
        }
    }

    #[test]
    fn pages_are_given_by_number_twenty_at_most() {
        let (text, is_error) = read(numbered(3), None);
        assert!(!is_error && text.starts_with("[page 1 of 3]\nThis is sheet 1.\n[page 2 of 3]"), "{text}");
        let (text, _) = read(numbered(30), Some("2-3"));
        assert_eq!(
            text,
            "[page 2 of 30]\nThis is sheet 2.\n[page 3 of 30]\nThis is sheet 3.\n[30 pages in all]"
        );
        for wanted in [None, Some("1-30"), Some("1-")] {
            let (text, _) = read(numbered(30), wanted);
            assert!(text.contains("sheet 20.") && !text.contains("sheet 21."), "{text}");
            assert!(text.ends_with("[go on with pages \"21-30\", at most 20 at once]"), "{text}");
        }
        for wanted in ["0", "5-2", "x", "1-2-3"] {
            assert!(read(numbered(3), Some(wanted)).0.contains("names no pages"), "{wanted}");
        }
        assert!(read(numbered(3), Some("4")).0.contains("it has 3 pages; 4 is past its end"));
    }

    #[test]
    fn broken_and_encrypted_files_say_so() {
        for broken in [b"%PDF-1.7\nnothing".to_vec(), numbered(2)[..300].to_vec()] {
            let (text, is_error) = read(broken, None);
            assert!(is_error && text.contains("that cannot be read"), "{text}");
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
        let (text, is_error) = read(bytes(locked), None);
        assert!(is_error && text.contains("encrypted"), "{text}");
        assert!(!text.contains("secret"));
    }

    #[test]
    fn a_page_on_which_the_parser_panics_leaves_the_others() {
        let mut both = document(&["one".to_owned(), "two".to_owned()]);
        let first = both.get_pages()[&1];
        // The library expects a box of four numbers.
        both.get_object_mut(first).unwrap().as_dict_mut().unwrap().set("MediaBox", vec![0.into()]);
        let (text, is_error) = read(bytes(both), None);
        assert!(!is_error && text.contains("(this page cannot be read: the parser failed inside)"), "{text}");
        assert!(text.contains("[page 2 of 2]\ntwo"), "{text}");
    }
}

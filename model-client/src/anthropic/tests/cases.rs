//! Cases that users of other harnesses met (S: streams, A: errors), on the bytes of this provider. What a worker
//! makes of them is tested with its own process.

use std::time::Duration;

use allocation_counter::{AllocationInfo, measure};
use bytes::Bytes;
use query_engine::ports::{ClosedBlock, Delta, ModelErrorKind, ModelStream};
use tokio::time::Instant;

use super::*;

const PING: &str = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
const OPEN_THINKING: &str = "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}\n\n";
const OPEN_TEXT: &str = "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n";
const OPEN_CALL: &str = "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":\"Write\",\"input\":{}}}\n\n";
const WORD: &str = "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n";
const CLOSE: &str = "data: {\"type\":\"content_block_stop\",\"index\":0}\n\n";
const END: &str = "data: {\"type\":\"message_stop\"}\n\n";
const COMMENT: &str = ": keep-alive\n\n";

/// What ended a stream, and after how many seconds of the paused clock.
async fn ended(chunks: Vec<(u64, &'static str)>, buffers_tool_input: bool) -> (String, u64) {
    let started = Instant::now();
    let watchdog = Watchdog::start(Timeouts::new(None, buffers_tool_input));
    let mut stream: ModelStream = drive(paced(chunks), fold(), watchdog);
    let mut end = "nothing".to_owned();
    while let Some(event) = stream.next().await {
        end = match event {
            Ok(StreamEvent::Stopped(stop)) => format!("{stop:?}"),
            Ok(_) => continue,
            Err(error) => match error.kind {
                ModelErrorKind::Stalled { watchdog } => watchdog.to_owned(),
                other => format!("{other:?}"),
            },
        };
    }
    (end, started.elapsed().as_secs())
}

/// `piece` every so many seconds, for so many seconds.
fn every(seconds: u64, piece: &'static str, during: u64) -> Vec<(u64, &'static str)> {
    std::iter::repeat_n((seconds, piece), usize::try_from(during / seconds).unwrap()).collect()
}

async fn check_end(name: &str, script: &[&[(u64, &'static str)]], buffers: bool, expected: (&str, u64)) {
    let (end, after) = ended(script.concat(), buffers).await;
    assert_eq!((end.as_str(), after), expected, "{name}");
}

#[tokio::test(start_paused = true)]
async fn s04_pings_and_comments_keep_no_stream_alive_for_ever() {
    for sign_of_life in [PING, COMMENT] {
        let signs = every(2, sign_of_life, 2_000);
        check_end("nothing else", &[&signs], false, ("no progress", 300)).await;
        check_end("after an opened text", &[&[(10, OPEN_TEXT)], &signs], false, ("no progress", 310)).await;
        let word = [(10, OPEN_TEXT), (10, WORD)];
        check_end("after a word", &[&word, &signs], false, ("no progress", 320)).await;
        // Thinking and held-back arguments suspend the watch, up to a cap.
        check_end("thinking", &[&[(10, OPEN_THINKING)], &signs], false, ("no progress", 910)).await;
        check_end("held back", &[&[(10, OPEN_CALL)], &signs], true, ("no progress", 910)).await;
        // A provider that streams arguments has no reason to be silent.
        check_end("streamed", &[&[(10, OPEN_CALL)], &signs], false, ("no progress", 310)).await;
        let closed = [(10, OPEN_THINKING), (10, CLOSE)];
        check_end("thought", &[&closed, &signs], false, ("no progress", 320)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn s05_long_thinking_is_not_broken_off() {
    let say = [(1, CLOSE), (1, END)];
    for thinking in [120, 300, 840] {
        let pings = every(15, PING, thinking);
        check_end("thinking", &[&[(1, OPEN_THINKING)], &pings, &say], false, ("EndTurn", thinking + 3)).await;
        check_end("held back", &[&[(1, OPEN_CALL)], &pings, &say], true, ("ToolUse", thinking + 3)).await;
    }
    // Words every four minutes are progress, however long the answer takes.
    let words: Vec<_> = (0..30).flat_map(|_| [every(60, PING, 240), vec![(1, WORD)]].concat()).collect();
    check_end("slow words", &[&[(0, OPEN_TEXT)], &words, &say], false, ("EndTurn", 30 * 241 + 2)).await;
}

#[tokio::test(start_paused = true)]
async fn s28_the_first_byte_has_a_deadline_of_its_own() {
    check_end("headers alone", &[&[(1_000, PING)]], false, ("first byte", 120)).await;
    check_end("just in time", &[&[(119, PING), (1, OPEN_TEXT), (1, END)]], false, ("EndTurn", 121)).await;
    check_end("then silence", &[&[(119, PING), (1_000, PING)]], false, ("idle", 119 + 90)).await;
    check_end("just alive", &[&every(89, PING, 267), &[(1, OPEN_TEXT), (1, END)]], false, ("EndTurn", 269))
        .await;
}

#[tokio::test]
async fn s11_a_cut_stream_is_called_that_with_its_bytes_and_its_last_event() {
    let body = frame(START) + &text_block(0, "half");
    let mut answer = Answer::sse(body.clone());
    answer.broken = true;
    let provider = Provider::start(vec![answer]).await;
    let error = collect(&*model(&provider, None), &hello()).await.pop().unwrap().unwrap_err();
    assert_eq!((error.kind, error.status), (ModelErrorKind::Truncated, None));
    let came = format!("4 events in {} bytes came, the last was `content_block_stop`", body.len());
    assert!(error.message.contains(&came), "{}", error.message);
}

/// The body of a `Write` whose content comes four bytes at a time, made as it is read so that nothing but the
/// reader keeps it.
fn huge_call(n_deltas: usize) -> impl futures::Stream<Item = Result<Bytes, std::convert::Infallible>> {
    const PER_CHUNK: usize = 100;
    let delta = |text: &str| {
        let delta = json!({"type": "input_json_delta", "partial_json": text});
        frame(&json!({"type": "content_block_delta", "index": 0, "delta": delta}).to_string())
    };
    let open = json!({"type": "tool_use", "id": "t1", "name": "Write", "input": {}});
    let open = json!({"type": "content_block_start", "index": 0, "content_block": open});
    let head = frame(START) + &frame(&open.to_string()) + &delta(r#"{"content":""#);
    let close = frame(&json!({"type": "content_block_stop", "index": 0}).to_string());
    let tail = delta(r#""}"#) + &close + &message_delta("tool_use", 1) + &frame(STOP);
    let middle = Bytes::from(delta("abcd").repeat(PER_CHUNK));
    let middle = std::iter::repeat_n(middle, n_deltas / PER_CHUNK);
    let chunks = std::iter::once(Bytes::from(head)).chain(middle).chain([Bytes::from(tail)]);
    futures::stream::iter(chunks.map(Ok))
}

/// What reading such a body allocates, and how much of the input was reported while it came.
fn read_huge_call(n_deltas: usize) -> (AllocationInfo, usize) {
    let mut reported = 0;
    let mut written = 0;
    let used = measure(|| {
        let watchdog = Watchdog::start(Timeouts::new(None, false));
        let mut stream = drive(huge_call(n_deltas), fold(), watchdog);
        futures::executor::block_on(async {
            while let Some(event) = stream.next().await {
                match event.unwrap() {
                    StreamEvent::Delta { delta: Delta::InputBytes(bytes), .. } => reported += bytes,
                    StreamEvent::BlockClosed {
                        block: ClosedBlock::Valid(Block::ToolUse { input, .. }),
                        ..
                    } => written = input["content"].as_str().unwrap().len(),
                    _ => {}
                }
            }
        });
    });
    assert_eq!(written, n_deltas * 4);
    (used, reported)
}

#[test]
fn s29_three_megabytes_in_tiny_deltas_are_linear_work_and_bounded_memory() {
    const DELTAS: usize = 750_000;
    const CONTENT: usize = DELTAS * 4;
    let (small, _) = read_huge_call(DELTAS / 10);
    let (large, reported) = read_huge_call(DELTAS);
    // Progress is seen as it comes: every byte of the arguments was told.
    assert_eq!(reported, CONTENT + r#"{"content":""}"#.len());
    // Ten times the input is ten times the work; quadratic work would be a hundred times. A buffer that grows by
    // doubling may be in another phase of its growth.
    let ratio = |large: u64, small: u64| large as f64 / small as f64;
    let (calls, bytes) =
        (ratio(large.count_total, small.count_total), ratio(large.bytes_total, small.bytes_total));
    assert!((9.5..10.5).contains(&calls) && (8.0..12.0).contains(&bytes), "{calls} {bytes}: {large:?}");
    // At most: the text in a buffer that is being doubled, or that text and the parsed one. Nothing is kept of
    // 750,000 events.
    let most = u64::try_from(4 * CONTENT).unwrap();
    assert!(large.bytes_max < most, "{large:?}");
}

#[test]
fn s31_odd_but_legal_streams_mean_the_same() {
    let plain = everything();
    let expected = decode(&plain, fold());
    let unknown =
        "event: future_thing\nid: 7\nretry: 5\ndata: {\"type\":\"future_thing\",\"index\":\"x\"}\n\n";
    let no_json = "event: future_thing\ndata: {\"type\":\"future_thing\",\"delta\":null}\n\n";
    let between = |event: &str| plain.replace("\n\n", &format!("\n\n{event}"));
    let odd = [
        ("CRLF", plain.replace('\n', "\r\n")),
        ("CR", plain.replace('\n', "\r")),
        ("comments", plain.replace("data:", ": c\ndata:")),
        ("data in two lines", plain.replace(",\"", ",\ndata: \"")),
        ("no blank after the colon", plain.replace(": {", ":{")),
        ("unknown events", between(unknown)),
        ("unknown events with a known field", between(no_json)),
        ("a byte order mark", format!("\u{feff}{plain}")),
        (
            "all of it",
            format!("\u{feff}{}", between(unknown).replace(",\"", ",\ndata:\"").replace('\n', "\r\n")),
        ),
    ];
    for (name, body) in odd {
        assert_eq!(decode(&body, fold()), expected, "{name}");
        // Every UTF-8 sequence and every line end is split.
        for size in [1, 2, 3, 7] {
            let chunks = body.as_bytes().chunks(size).map(Bytes::copy_from_slice).collect();
            assert_eq!(decode_chunks(chunks, fold()), expected, "{name} in pieces of {size}");
        }
    }
}

#[tokio::test]
async fn a08_retry_after_in_all_its_forms_reaches_the_loop() {
    let in_half_a_minute = jiff::Timestamp::now() + Duration::from_secs(30);
    let date =
        jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&in_half_a_minute).unwrap();
    // Of a date some seconds may have passed.
    let table: [(&str, &str, Option<std::ops::RangeInclusive<u64>>); 8] = [
        ("retry-after", "7", Some(7_000..=7_000)),
        ("retry-after", "1.5", Some(1_500..=1_500)),
        ("retry-after-ms", "250", Some(250..=250)),
        ("retry-after", &date, Some(1..=30_000)),
        ("retry-after", "Mon, 30 Nov 2020 12:00:00 GMT", Some(0..=0)),
        ("retry-after", "-5", None),
        ("retry-after-ms", "-5", None),
        ("retry-after", "soon", None),
    ];
    for (name, value, expected) in table {
        let mut answer = Answer::refusal(429, "{}");
        answer.headers.push((name, value.to_owned()));
        let provider = Provider::start(vec![answer]).await;
        let error = collect(&*model(&provider, None), &hello()).await.remove(0).unwrap_err();
        assert_eq!(error.kind, ModelErrorKind::RateLimited);
        let wait = error.retry_after.map(|wait| u64::try_from(wait.as_millis()).unwrap());
        match (wait, expected) {
            (Some(wait), Some(expected)) if expected.contains(&wait) => {}
            (None, None) => {}
            (wait, expected) => panic!("{name}: {value} gave {wait:?}, expected {expected:?}"),
        }
    }
}

//! Hostile pages and files in the process that converts them: each ends with an answer, in bounded time.

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use worker::convert::{Converter, Job};

fn converter() -> Converter {
    Converter::with_program(env!("CARGO_BIN_EXE_swarm-worker").into())
}

async fn html(page: &str) -> Result<String, String> {
    converter().text(Job::Html, page.as_bytes().to_vec()).await
}

/// A document of one page that says this.
fn pdf(text: &str) -> Vec<u8> {
    let content = format!("BT /F1 12 Tf 50 700 Td ({text}) Tj ET");
    let objects = [
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>".to_owned(),
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents 4 0 R \
         /Resources << /Font << /F1 5 0 R >> >> >>"
            .to_owned(),
        format!("<< /Length {} >>\nstream\n{content}\nendstream", content.len()),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>".to_owned(),
    ];
    let mut file = "%PDF-1.4\n".to_owned();
    let mut table = format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1);
    for (n, object) in objects.iter().enumerate() {
        let _ = writeln!(table, "{:010} 00000 n ", file.len());
        let _ = writeln!(file, "{} 0 obj\n{object}\nendobj", n + 1);
    }
    let start = file.len();
    let _ = write!(
        file,
        "{table}trailer\n<< /Size {} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n",
        objects.len() + 1
    );
    file.into_bytes()
}

#[tokio::test]
async fn ordinary_input_becomes_text_or_a_reason() {
    assert_eq!(html("<h1>Title</h1><p>Grüße <b>you</b>").await.unwrap(), "# Title\n\nGrüße **you**\n");
    let long = format!("<p>{}</p>", "word ".repeat(1_000_000));
    assert_eq!(html(&long).await.unwrap().len(), 5_000_000);
    let paged = converter().text(Job::Pdf(Some(1..=3)), pdf("One sheet.")).await;
    assert_eq!(paged.as_deref(), Ok("[page 1 of 1]\nOne sheet.\n"));
    let broken = converter().text(Job::Pdf(None), b"%PDF-1.4\nbroken".to_vec()).await.unwrap_err();
    assert!(!broken.is_empty() && broken != "its parser failed inside", "{broken}");
    let nobody = Converter::with_program("/nowhere/at/all".into()).text(Job::Html, Vec::new()).await;
    assert!(nobody.unwrap_err().contains("could not be run"));
}

/// Each takes hours, all memory or the stack where nothing bounds it.
#[tokio::test]
async fn hostile_input_ends_with_a_reason() {
    let quotes = format!("{}{}", "<blockquote>".repeat(390), "<p>x</p>".repeat(60_000));
    let pages = [
        ("quotes in quotes", quotes),
        ("nesting", "<div>".repeat(2_000_000)),
        ("elements moved out of tables", "<table><b>".repeat(300_000)),
        ("neighbours that are joined", "<b>a</b>".repeat(1_000_000)),
    ];
    for (name, page) in pages {
        let hasty = converter().within(Duration::from_secs(2));
        let answer = hasty.text(Job::Html, page.into_bytes()).await;
        let why = answer.expect_err(name);
        assert!(why.contains("takes longer than 2 s") || why.contains("inside one another"), "{name}: {why}");
    }
}

#[tokio::test]
async fn a_call_that_is_dropped_leaves_no_process() {
    // Parsing this takes all the time there is.
    let page = "<table><b>".repeat(300_000);
    let marker = std::process::id();
    let children = || {
        let children =
            std::fs::read_to_string(format!("/proc/{marker}/task/{}/children", nix::unistd::gettid()));
        children.unwrap_or_default().split_whitespace().count()
    };
    let mut call = Box::pin(html(&page));
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut call).await.is_err());
    assert_eq!(children(), 1, "it converts");
    drop(call);
    let began = Instant::now();
    while children() > 0 && began.elapsed() < Duration::from_secs(10) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(children(), 0);
}

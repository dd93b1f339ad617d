use std::{io::Write as _, sync::Mutex, time::Duration};

use query_engine::ports::{NoObserver, ToolContext, ToolOutput};
use serde_json::{Value, json};
use swarm_protocol::{
    ResultBlock,
    launch::{SearchService, WebSettings},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::*;

/// A server that answers each path as told, byte for byte.
struct Site {
    address: std::net::SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
    _serving: AbortOnDropHandle<()>,
}

/// What a path is answered with.
#[derive(Clone)]
enum Says {
    Bytes(Vec<u8>),
    /// The head, then this again and again.
    Endless(&'static str, &'static [u8]),
    /// The head, then nothing.
    Silent(&'static str),
}

fn page(content_type: &str, body: &[u8]) -> Says {
    headed(&format!("200 OK\r\ncontent-type: {content_type}"), body)
}

fn headed(head: &str, body: &[u8]) -> Says {
    let head = format!("HTTP/1.1 {head}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    Says::Bytes([head.as_bytes(), body].concat())
}

fn to(location: &str) -> Says {
    headed(&format!("302 Found\r\nlocation: {location}"), b"")
}

impl Site {
    async fn new(pages: impl Fn(&str) -> Says + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let (kept, pages) = (heads.clone(), Arc::new(pages));
        let serving = AbortOnDropHandle::new(tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (kept, pages) = (kept.clone(), pages.clone());
                open.spawn(async move { answer(stream, &kept, &*pages).await.unwrap_or_default() });
            }
        }));
        Self { address, heads, _serving: serving }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn asked(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }

    fn settings(&self) -> WebSettings {
        WebSettings { allow_private: vec![self.address.to_string()], search: None }
    }

    /// WebFetch that may reach this site, with small limits.
    fn tool(&self) -> WebFetch {
        self.tool_following(|_| false)
    }

    fn tool_following(&self, may_follow: impl Fn(&str) -> bool + Send + Sync + 'static) -> WebFetch {
        let limits = Limits { bytes: 100_000, time: Duration::from_secs(5), redirects: 3 };
        WebFetch::new(
            Arc::new(Fetcher::new(&self.settings().allow_private, limits)),
            Arc::new(may_follow),
            Converter::here(),
        )
    }
}

async fn answer(
    mut stream: TcpStream,
    kept: &Mutex<Vec<String>>,
    pages: &(impl Fn(&str) -> Says + Sync),
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    kept.lock().unwrap().push(head);
    match pages(&path) {
        Says::Bytes(bytes) => stream.write_all(&bytes).await,
        Says::Endless(head, piece) => {
            stream.write_all(head.as_bytes()).await?;
            loop {
                stream.write_all(piece).await?;
            }
        }
        Says::Silent(head) => {
            stream.write_all(head.as_bytes()).await?;
            std::future::pending().await
        }
    }
}

fn context(cancel: &CancellationToken) -> ToolContext {
    ToolContext {
        tool_use_id: "toolu_1".parse().unwrap(),
        cancel: cancel.clone(),
        observer: Arc::new(NoObserver),
    }
}

async fn call(tool: &impl Tool, input: Value) -> ToolOutput {
    tool.call(input, context(&CancellationToken::new())).await
}

fn said(output: &ToolOutput) -> &str {
    match &output.content[0] {
        ResultBlock::Text { text } => text,
        other => panic!("no text: {other:?}"),
    }
}

#[track_caller]
fn says(output: &ToolOutput, is_error: bool, words: &str) {
    assert!(said(output).contains(words), "{words:?} is not in {:?}", said(output));
    assert_eq!(output.is_error, is_error, "{}", said(output));
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn a_page_is_given_as_markdown_and_what_is_text_as_it_is() {
    let site = Site::new(|path| match path {
        "/page" => page("text/html", b"<h1>Title</h1><p>Hello <b>you</b></p>"),
        "/json" => page("application/json", b"{\"a\": [1, 2]}"),
        "/latin" => page("text/plain; charset=iso-8859-1", b"caf\xe9"),
        "/packed" => {
            headed("200 OK\r\ncontent-type: text/markdown\r\ncontent-encoding: gzip", &gzip(b"# Packed"))
        }
        "/zip" => page("application/zip", b"PK\x03\x04"),
        "/lies" => page("text/plain", b"MZ\0\0\0"),
        "/br" => headed("200 OK\r\ncontent-type: text/plain\r\ncontent-encoding: br", b"x"),
        "/broken" => headed("200 OK\r\ncontent-type: text/plain\r\ncontent-encoding: gzip", b"no gzip"),
        "/empty" => page("text/html", b"<script>render()</script>"),
        _ => headed("404 Not Found\r\ncontent-type: text/html", b"<h1>No such page</h1>"),
    })
    .await;
    let tool = site.tool();
    for (path, is_error, words) in [
        ("/page", false, "# Title\n\nHello **you**"),
        ("/json", false, "{\"a\": [1, 2]}"),
        ("/latin", false, "caf\u{e9}"),
        ("/packed", false, "# Packed"),
        ("/empty", false, "The page has no text"),
        ("/zip", true, "is application/zip, 4 bytes, which is no text"),
        ("/lies", true, "binary data of 5 bytes"),
        ("/br", true, "packed as `br`"),
        ("/broken", true, "cannot be unpacked"),
        ("/gone", true, "answered 404 Not Found.\n# No such page"),
    ] {
        says(&call(&tool, json!({"url": site.url(path)})).await, is_error, words);
    }
    let reminded = call(&tool, json!({"url": site.url("/page"), "prompt": "the greeting"})).await;
    says(&reminded, false, "You look for: the greeting\n");
    let head = &site.asked()[0];
    assert!(head.contains("accept-encoding: gzip\r\n") && head.contains("user-agent: swarm/"), "{head}");
}

#[tokio::test]
async fn a_long_page_is_given_in_parts() {
    let text: String = (0..30_000).map(|n| format!("{n:06}")).collect();
    let site = Site::new(move |_| page("text/plain", text.as_bytes())).await;
    let fetcher = Fetcher::new(&site.settings().allow_private, Limits::default());
    let tool = WebFetch::new(Arc::new(fetcher), Arc::new(|_: &str| false), Converter::here());
    let first = call(&tool, json!({"url": site.url("/")})).await;
    says(
        &first,
        false,
        "[Characters 0 to 100000 of 180000; call WebFetch with offset 100000 for what follows]",
    );
    assert!(said(&first).chars().count() <= tool.max_result_size_chars().unwrap());
    let second = call(&tool, json!({"url": site.url("/"), "offset": 100_000})).await;
    says(&second, false, "029999");
    assert!(!said(&second).contains("call WebFetch with offset"), "it is the end");
    says(&call(&tool, json!({"url": site.url("/"), "offset": 180_000})).await, true, "behind its end");
}

#[tokio::test]
async fn a_body_without_an_end_a_bomb_and_a_silent_server_are_left() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n";
    let site = Site::new(|path| match path {
        "/endless" => Says::Endless(HEAD, b"and so on, "),
        "/bomb" => headed(
            "200 OK\r\ncontent-type: text/plain\r\ncontent-encoding: gzip",
            &gzip(&vec![b'x'; 20_000_000]),
        ),
        "/announced" => {
            Says::Silent("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 100001\r\n\r\n")
        }
        _ => Says::Silent(HEAD),
    })
    .await;
    let tool = site.tool();
    for path in ["/endless", "/bomb", "/announced"] {
        says(&call(&tool, json!({"url": site.url(path)})).await, true, "more than 100000 bytes");
    }
    let limits = Limits { time: Duration::from_millis(300), ..Limits::default() };
    let fetcher = Fetcher::new(&site.settings().allow_private, limits);
    let hasty = WebFetch::new(Arc::new(fetcher), Arc::new(|_: &str| false), Converter::here());
    says(&call(&hasty, json!({"url": site.url("/silent")})).await, true, "it took more than 0.3 s");

    let cancel = CancellationToken::new();
    let begun = tool.call(json!({"url": site.url("/silent")}), context(&cancel));
    let stop = async {
        while site.asked().len() < 5 {
            tokio::task::yield_now().await;
        }
        cancel.cancel();
    };
    says(&tokio::join!(begun, stop).0, true, "was cancelled");
}

#[tokio::test]
async fn redirects_are_followed_where_they_may_lead() {
    let other = Site::new(|_| page("text/plain", b"the other host")).await;
    let port = other.address.port();
    let site = Site::new(move |path| match path {
        "/here" => to("/there"),
        "/there" => page("text/plain", b"arrived"),
        "/loop" => to("/loop"),
        "/other" => to(&format!("http://localhost:{port}/x")),
        "/metadata" => to("http://169.254.169.254/latest/meta-data/"),
        "/file" => to("file:///etc/passwd"),
        "/secret" => to("http://me:pw@127.0.0.1/"),
        _ => headed("302 Found\r\nx: y", b"no place"),
    })
    .await;
    let careful = site.tool();
    let fetch = async |path: &str| call(&careful, json!({"url": site.url(path)})).await;
    let arrived = fetch("/here").await;
    says(&arrived, false, "arrived");
    says(&arrived, false, &site.url("/there"));
    says(&fetch("/loop").await, true, "redirected more than 3 times");
    says(&fetch("/other").await, false, &format!("not followed: http://localhost:{port}/x"));
    says(&fetch("/metadata").await, false, "not followed: http://169.254.169.254/");
    assert_eq!(other.asked().len(), 0, "nobody asked a host that no rule allows");
    says(&fetch("/file").await, true, "file: URLs are not fetched");
    says(&fetch("/secret").await, true, "user name or password");
    says(&fetch("/nowhere").await, true, "answered 302 Found");

    let bold = site.tool_following(|_| true);
    let leads_inside = call(&bold, json!({"url": site.url("/metadata")})).await;
    says(&leads_inside, true, "169.254.169.254:80, a link-local address");
    // The name leads to this machine, where one port is allowed, and this is another.
    let by_name = call(&bold, json!({"url": site.url("/other")})).await;
    says(&by_name, true, "an address of this machine");
    assert_eq!(other.asked().len(), 0, "a rule on a domain opens no address");
}

#[tokio::test]
async fn what_leads_inside_is_refused_in_every_spelling() {
    let site = Site::new(|_| page("text/plain", b"inside")).await;
    let port = site.address.port();
    let tool = WebFetch::new(
        Arc::new(Fetcher::new(&[], Limits::default())),
        Arc::new(|_: &str| true),
        Converter::here(),
    );
    for host in [
        "127.0.0.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "127.0.0.1.",
        "localhost",
        "[::ffff:127.0.0.1]",
        "[::1]",
        "[64:ff9b::7f00:1]",
        "0.0.0.0",
        "10.0.0.1",
        "169.254.169.254",
        "100.100.100.200",
        "[fd00:ec2::254]",
    ] {
        let refused = call(&tool, json!({"url": format!("http://{host}:{port}/")})).await;
        says(&refused, true, "such addresses are not fetched");
    }
    assert_eq!(site.asked().len(), 0, "nobody connected");
    for (url, words) in [
        ("file:///etc/passwd", "file: URLs are not fetched"),
        ("data:text/plain,x", "data: URLs are not fetched"),
        ("ftp://example.com/", "ftp: URLs are not fetched"),
        ("https://user@example.com/", "user name or password"),
        ("example.com/page", "is no URL"),
        ("", "is no URL"),
    ] {
        says(&call(&tool, json!({"url": url})).await, true, words);
    }
    says(&call(&tool, json!({"url": 7})).await, true, "does not fit its schema");
}

#[tokio::test]
async fn a_name_is_looked_up_once_and_the_checked_address_is_asked() {
    // `localhost` leads to the allowed address, with its port.
    let site = Site::new(|_| page("text/plain", b"by name")).await;
    let mut allowed = site.settings().allow_private;
    allowed.push(format!("[::1]:{}", site.address.port()));
    let tool = WebFetch::new(
        Arc::new(Fetcher::new(&allowed, Limits::default())),
        Arc::new(|_: &str| false),
        Converter::here(),
    );
    let url = format!("http://localhost:{}/", site.address.port());
    says(&call(&tool, json!({"url": url})).await, false, "by name");
    assert!(site.asked()[0].contains(&format!("host: localhost:{}\r\n", site.address.port())));
}

fn service(site: &Site) -> SearchService {
    SearchService {
        endpoint: site.url("/search?q={query}"),
        key_env: Some("SEARCH_API_KEY".to_owned()),
        key_header: "x-token: {key}".to_owned(),
        results: "/web/results".to_owned(),
        title: "/title".to_owned(),
        url: "/url".to_owned(),
        snippet: "/description".to_owned(),
    }
}

#[tokio::test]
async fn a_search_asks_the_configured_service_and_filters_by_domain() {
    let site = Site::new(|path| match path {
        "/search?q=fails" => headed("401 Unauthorized", b"bad token s3cret"),
        "/search?q=shape" => page("application/json", b"{\"items\": []}"),
        "/search?q=html" => page("text/html", b"<p>"),
        "/search?q=none" => page("application/json", b"{\"web\": {\"results\": []}}"),
        _ => page(
            "application/json",
            json!({"web": {"results": [
                {"title": "The  book", "url": "https://doc.example.com/book", "description": "All\nof it"},
                {"title": "A talk", "url": "https://talks.example.net/1"},
                {"title": "no link"},
            ]}})
            .to_string()
            .as_bytes(),
        ),
    })
    .await;
    let key = ServiceKey::default();
    let tool = WebSearch::new(service(&site), key.clone());
    let search = async |input: Value| call(&tool, input).await;
    says(
        &search(json!({"query": "x"})).await,
        true,
        "SEARCH_API_KEY was not set where the task was submitted",
    );
    assert_eq!(site.asked().len(), 0);
    key.set("s3cret".to_owned()).unwrap();
    let found = search(json!({"query": "rust & \u{e9}"})).await;
    expect_test::expect![[r#"
        1. The book
           https://doc.example.com/book
           All of it
        2. A talk
           https://talks.example.net/1
    "#]]
    .assert_eq(said(&found));
    let head = &site.asked()[0];
    assert!(
        head.starts_with("GET /search?q=rust%20%26%20%C3%A9 ") && head.contains("x-token: s3cret\r\n"),
        "{head}"
    );
    let only = search(json!({"query": "x", "allowed_domains": ["example.com"]})).await;
    assert!(said(&only).contains("book") && !said(&only).contains("talk"), "{}", said(&only));
    let without =
        search(json!({"query": "x", "blocked_domains": ["*.example.com", "talks.example.net"]})).await;
    says(&without, false, "Nothing was found (3 were in domains that you left out)");
    says(&search(json!({"query": "none"})).await, false, "Nothing was found.");
    let refused = search(json!({"query": "fails"})).await;
    says(&refused, true, "401 Unauthorized: bad token [key]");
    says(&search(json!({"query": "shape"})).await, true, "no list at `/web/results`");
    says(&search(json!({"query": "html"})).await, true, "is no JSON");
    says(&search(json!({"query": " "})).await, true, "The query is empty");
}

#[test]
fn a_search_is_offered_only_where_it_is_configured() {
    let names = |settings: &WebSettings| {
        let tools = tools(settings, Arc::new(|_: &str| false), ServiceKey::default());
        tools.iter().map(|tool| tool.name().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&WebSettings::default()), ["WebFetch"]);
    let search = SearchService {
        endpoint: "https://search.example.com/?q={query}".to_owned(),
        key_env: None,
        key_header: String::new(),
        results: String::new(),
        title: "/title".to_owned(),
        url: "/url".to_owned(),
        snippet: "/text".to_owned(),
    };
    assert_eq!(
        names(&WebSettings { search: Some(search), ..WebSettings::default() }),
        ["WebFetch", "WebSearch"]
    );
}

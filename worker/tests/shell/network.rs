//! What of the network commands reach: loopback of their own, listed hosts over the proxy, or all of it.

use crate::support::{Fixture, has};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use worker::proxy::{Allowed, Proxy};
use worker::sandbox::Tier;
use worker::shell::CommandExit;

/// Answers every connection with what it was asked, until it is dropped with the test's process.
fn echo_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            answer(stream.unwrap());
        }
    });
    port
}

fn answer(mut stream: TcpStream) {
    let mut asked = Vec::new();
    let mut buffer = [0; 1024];
    while !asked.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(count) => asked.extend_from_slice(&buffer[..count]),
        }
    }
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", asked.len());
    let _gone: std::io::Result<()> =
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&asked));
}

fn proxied(proxy: &Proxy) -> Fixture {
    Fixture::on(Tier::Namespaces, |config| {
        config.policy.proxy = Some(proxy.path().to_owned());
        for (name, value) in Proxy::variables() {
            config.environment.set(name, value);
        }
        // The servers of these tests are on loopback, which programs ask without a proxy.
        config.environment.set("NO_PROXY", "").set("no_proxy", "");
    })
}

#[tokio::test]
async fn listed_hosts_are_reached_over_the_proxy_and_others_are_not() {
    if !has(Tier::Namespaces) {
        return;
    }
    let (port, other) = (echo_server(), echo_server());
    let listed = format!("127.0.0.1:{port}");
    let by_name = format!("localhost:{other}");
    let proxy = Proxy::start(Allowed::new([listed.as_str(), by_name.as_str()])).unwrap();
    let fixture = proxied(&proxy);
    let text = fixture
        .render(&format!("curl -sS -H 'proxy-authorization: x' -H 'connection: x-mine' -H 'x-mine: 1' http://127.0.0.1:{port}/path?q=1"))
        .await
        .to_ascii_lowercase();
    assert!(
        text.contains("get /path?q=1 http/1.1") && text.contains(&format!("host: 127.0.0.1:{port}")),
        "{text}"
    );
    assert!(!text.contains("proxy-") && !text.contains("x-mine"), "{text}");
    // A tunnel carries what is none of the proxy's business.
    let text = fixture.render(&format!("curl -sS --proxytunnel http://127.0.0.1:{port}/tunnel")).await;
    assert!(text.contains("GET /tunnel HTTP/1.1"), "{text}");
    for (command, words) in [
        (format!("curl -sS http://127.0.0.1:{other}/"), "is not among the hosts that commands may reach"),
        (format!("curl -sS http://localhost:{other}/"), "leads to a private address"),
        (format!("curl -sS --proxytunnel http://127.0.0.1:{other}/"), "403"),
        ("curl -sS http://169.254.169.254/latest/meta-data".to_owned(), "is not among the hosts"),
        ("curl -sS http://127.0.0.1:61080/".to_owned(), "is not among the hosts"),
        ("curl -sS --noproxy '*' http://127.0.0.1:61080/".to_owned(), "this is a proxy"),
        (format!("curl -sS --noproxy '*' http://127.0.0.1:{port}/"), "refused|connect"),
    ] {
        let text = fixture.render(&command).await;
        assert!(words.split('|').any(|words| text.contains(words)), "{command}: {text}");
        assert!(!text.contains("HTTP/1.1\r\n"), "{command}: {text}");
    }
}

#[tokio::test]
async fn many_connections_at_once_and_the_proxy_lets_go_of_a_command_that_ends() {
    if !has(Tier::Namespaces) {
        return;
    }
    let port = echo_server();
    let listed = format!("127.0.0.1:{port}");
    let proxy = Proxy::start(Allowed::new([listed.as_str()])).unwrap();
    let fixture = proxied(&proxy);
    let command = format!(
        "for n in $(seq 40); do curl -sS -o /dev/null -w '%{{http_code}} ' http://127.0.0.1:{port}/ & done; wait"
    );
    let text = fixture.render(&command).await;
    assert_eq!(text.matches("200").count(), 40, "{text}");
    // A tunnel that nobody closes does not hold the call, nor the next one.
    let held = format!(
        "exec 3<>/dev/tcp/127.0.0.1/61080; printf 'CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\n\\r\\n' >&3; head -c 12 <&3"
    );
    for _ in 0..3 {
        assert_eq!(fixture.render(&held).await, "exit code 0: HTTP/1.1 200");
    }
}

#[tokio::test]
async fn a_proxy_that_is_gone_starts_no_command() {
    if !has(Tier::Namespaces) {
        return;
    }
    let proxy = Proxy::start(Allowed::new(["crates.io"])).unwrap();
    let fixture = proxied(&proxy);
    drop(proxy);
    let outcome = fixture.outcome("true").await;
    assert!(
        matches!(&outcome.exit, CommandExit::NotStarted { message } if message.contains("proxy")),
        "{outcome:?}"
    );
}

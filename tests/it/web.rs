//! What a worker gets from the web: asked for by domain, and never from inside.

use std::{net::SocketAddr, sync::Arc};

use axum::{Router, http::HeaderMap, routing::get};
use integration_tests::{ModelServer, Reply, SwarmHome, TestRepo};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

use crate::rig::{Rig, call, prompt, reporter};

/// A web site on this machine.
struct Site {
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Site {
    async fn new(router: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("a bound listener has an address");
        let serving =
            tokio::spawn(async move { axum::serve(listener, router).await.expect("the listener accepts") });
        Self { address, serving }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn manual() -> Router {
    let page =
        || async { axum::response::Html("<title>Manual</title><h2>Use</h2><p>Turn the <em>key</em>.</p>") };
    Router::new().route("/manual", get(page))
}

/// A worker that makes these calls, one a turn, and ends.
fn caller(rig: &Rig, name: &str, calls: &[(&'static str, Value)]) {
    rig.coordinator(Reply::call("Agent", reporter(name)));
    let mut replies: Vec<Reply> = calls.iter().cloned().map(call).collect();
    replies.push(Reply::say("Read all."));
    rig.model.agent(&prompt(name), replies);
}

async fn results(rig: &Rig, name: &str) -> Vec<(String, bool)> {
    let request = rig.model.requests_of(&prompt(name)).last().cloned().expect("it asked");
    request.tool_results().map(|(_, text, is_error)| (text.to_owned(), is_error)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_domain_is_asked_for_and_a_rule_for_it_covers_the_next_page() {
    let site = Site::new(manual()).await;
    let rig = Rig::configured(&format!("[web]\nallow_private = [\"{}\"]\n", site.address)).await;
    let fetch = ("WebFetch", json!({"url": site.url("/manual")}));
    caller(&rig, "reader", &[fetch.clone(), fetch]);
    let task = rig.submit().await;
    let request = rig.permission_request(&task).await;
    assert_eq!(request["request"]["tool"], "WebFetch");
    assert_eq!(request["request"]["proposed_rule"], "WebFetch(domain:127.0.0.1)");
    rig.answer(&request, &json!({"decision": "allow", "scope": "session"})).await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    assert_eq!(rig.events(&task, "permission.requested").await.len(), 1);
    for (text, is_error) in results(&rig, "reader").await {
        assert!(!is_error && text.contains("# Manual\n\n## Use\n\nTurn the *key*."), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_allowed_domain_that_leads_inside_is_refused_after_its_name_is_resolved() {
    let site = Site::new(manual()).await;
    let rig = Rig::new().await;
    rig.repo.write(".claude/settings.json", r#"{"permissions": {"allow": ["WebFetch(domain:localhost)"]}}"#);
    rig.repo.commit("settings");
    rig.home.run(rig.repo.path(), &["trust", "--yes"]).await.expect_code(0);
    let url = format!("http://localhost:{}/manual", site.address.port());
    caller(&rig, "reader", &[("WebFetch", json!({"url": url}))]);
    let task = rig.submit_with(json!({"unattended": true})).await;
    rig.done(&task).await;
    let results = results(&rig, "reader").await;
    assert!(results[0].1 && results[0].0.contains("an address of this machine"), "{results:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_opens_no_private_address() {
    let rig = Rig::new().await;
    rig.repo.write("swarm.toml", "[web]\nallow_private = [\"127.0.0.1\"]\n");
    rig.repo.commit("settings");
    let (status, refused) = rig.try_submit(json!({})).await;
    assert!(status.is_client_error(), "{refused:#}");
    assert!(refused.to_string().contains("belongs in config.toml"), "{refused:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_uses_the_key_that_no_command_sees() {
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let kept = seen.clone();
    let search = move |headers: HeaderMap| async move {
        kept.lock().expect("it is held for a moment").push(headers.get("x-token").cloned());
        axum::Json(
            json!({"results": [{"title": "A page", "url": "https://example.com/", "content": "Words"}]}),
        )
    };
    let site = Site::new(Router::new().route("/search", get(search))).await;
    let model = ModelServer::start();
    let mut home = SwarmHome::new(&model);
    home.set("SEARCH_SERVICE_KEY", "hush-hush");
    let toml = format!(
        "[web]\nsearch_url = \"{}\"\nsearch_key_env = \"SEARCH_SERVICE_KEY\"\nsearch_key_header = \"x-token: {{key}}\"\n",
        site.url("/search?q={query}")
    );
    let rig = Rig::made(model, home, TestRepo::new(), &toml).await;
    let env = ("Bash", json!({"command": "env; cat /proc/$PPID/environ"}));
    caller(&rig, "seeker", &[("WebSearch", json!({"query": "words"})), env]);
    let task = rig.submit().await;
    let request = rig.permission_request(&task).await;
    assert_eq!(request["request"]["tool"], "WebSearch");
    rig.answer(&request, &json!({"decision": "allow"})).await;
    rig.done(&task).await;
    let results = results(&rig, "seeker").await;
    assert_eq!(results[0], ("1. A page\n   https://example.com/\n   Words\n".to_owned(), false));
    assert_eq!(
        *seen.lock().expect("nobody asks any more"),
        [Some("hush-hush".parse().expect("it fits a header"))]
    );
    assert!(!results[1].0.contains("hush-hush"), "{}", results[1].0);
    let journal = format!("{:?}", rig.journal(&task).await);
    assert!(!journal.contains("hush-hush"), "the journal holds no key");
}

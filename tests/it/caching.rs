//! What a long conversation costs: the provider's simulated cache says which part of each request it has seen before.

use integration_tests::{
    ModelServer, Reply, SwarmHome, TestRepo, eventually,
    model_server::{Request, Usage},
    wait::SOON,
    when,
};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::rig::{COORDINATE, Rig, agent, call, prompt, write};

/// Formats: how an endpoint of each is configured, and where its base is.
const FORMATS: [(&str, &str); 3] = [("anthropic", ""), ("chat", "/v1"), ("responses", "/v1")];

/// Like most models that are not tiny.
const WINDOW: &str = "context_window = 200000\nmax_output = 32000\n";

async fn rig_of(api: &str, path: &str) -> Rig {
    let model = ModelServer::start();
    let mut home = SwarmHome::new(&model);
    home.set("SWARM_MODEL", "local/test-model");
    let endpoint =
        format!("[endpoints.local]\napi = \"{api}\"\nbase_url = \"{}{path}\"\n{WINDOW}", model.url());
    let text = "A line of a file that somebody reads.\n".repeat(40);
    Rig::made(model, home, TestRepo::with_files(&[("long.txt", &text)]), &endpoint).await
}

fn turn(n: usize) -> Reply {
    let read = ("Read", json!({"file_path": "long.txt"}));
    match n % 3 {
        0 => call(write(&format!("f{n}.txt"), &format!("{n}\n").repeat(50))),
        1 => call(read),
        _ => Reply::say("Looking once more.").tool(read.0, read.1),
    }
}

/// Read and written tokens of all rows of `swarm cost --by worker`.
async fn cost(rig: &Rig) -> (Vec<Value>, String) {
    let directory = rig.repo.path();
    let json = rig.home.run(directory, &["cost", "--by", "worker", "--json"]).await.expect_code(0);
    let text = rig.home.run(directory, &["cost", "--by", "worker"]).await.expect_code(0);
    (json.json_lines(), text.stdout)
}

#[tokio::test(flavor = "multi_thread")]
async fn l11_a_worker_of_twenty_turns_reads_what_it_sent_before_from_the_cache() {
    for (api, path) in FORMATS {
        let rig = rig_of(api, path).await;
        rig.coordinator(Reply::call("Agent", agent("long")));
        rig.model.agent(&prompt("long"), (0..19).map(turn).chain([Reply::say("Done.")]));
        let task = rig.submit().await;
        assert_eq!(rig.done(&task).await["verdict"], "complete", "{api}");
        let requests = rig.model.requests_of(&prompt("long"));
        assert_eq!(requests.len(), 20, "{api}");
        let used: Vec<Usage> =
            requests.iter().map(|request| request.usage().expect("each was answered")).collect();
        assert!(used[0].prompt() > 2_048, "{api}: {:?}", used[0]);
        for (n, pair) in used.windows(2).enumerate() {
            let (before, read) = (pair[0].prompt(), pair[1].cache_read);
            assert!(read * 100 >= before * 95, "{api}: request {}: {read} of {before} tokens", n + 2);
        }

        // The same figures are what people see.
        let sum = |figure: fn(&Usage) -> u64| used.iter().map(figure).sum::<u64>();
        let (rows, text) = cost(&rig).await;
        let row = rows.iter().find(|row| row["row"]["label"] == "long").expect("the worker has a row");
        let usage = &row["row"]["usage"];
        assert_eq!(
            (&usage["input_tokens"], &usage["cache_read_tokens"], &usage["cache_write_tokens"]),
            (
                &json!(sum(|usage| usage.input)),
                &json!(sum(|usage| usage.cache_read)),
                &json!(sum(|usage| usage.cache_write))
            ),
            "{api}"
        );
        let head = text.lines().next().expect("a head");
        assert_eq!(
            head.split_whitespace().collect::<Vec<_>>(),
            ["input", "read", "written", "output", "cost"]
        );
        if api == "anthropic" {
            // All but a rest is either read or written: each request has a mark at its end.
            assert_eq!(sum(|usage| usage.input), 0);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cache_that_has_expired_is_written_again_and_read_from_then_on() {
    let rig = rig_of("anthropic", "").await;
    rig.coordinator(Reply::call("Agent", agent("slow")));
    rig.model.agent(&prompt("slow"), [turn(0), turn(1).hold("old"), turn(2), Reply::say("Done.")]);
    let task = rig.submit().await;
    rig.model.gate("old").reached().await;
    // As a program in another process would: six minutes pass.
    let clock = format!("{}/__control/clock", rig.model.url());
    let advance = integration_tests::http_client().post(clock).json(&json!({"seconds": 360}));
    assert_eq!(advance.send().await.expect("an answer").status(), StatusCode::OK);
    rig.model.gate("old").open();
    rig.done(&task).await;
    let requests = rig.model.requests_of(&prompt("slow"));
    let used: Vec<Usage> =
        requests.iter().map(|request| request.usage().expect("each was answered")).collect();
    assert!(used[1].cache_read > 0, "{used:?}");
    assert_eq!(used[2].cache_read, 0, "what was written counts from its request: {used:?}");
    assert_eq!(used[2].cache_write, used[2].prompt());
    assert!(used[3].cache_read * 100 >= used[2].prompt() * 95, "{used:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cache_that_the_provider_dropped_is_counted_and_told() {
    let rig = rig_of("anthropic", "").await;
    rig.coordinator(Reply::call("Agent", agent("slow")));
    let last = Reply::say("Done.").hold("end");
    rig.model.agent(&prompt("slow"), [turn(0), turn(1).hold("old"), turn(2), last]);
    let task = rig.submit().await;
    rig.model.gate("old").reached().await;
    // The provider's clock alone goes on: for the worker the cache is fresh.
    let clock = format!("{}/__control/clock", rig.model.url());
    let advance = integration_tests::http_client().post(clock).json(&json!({"seconds": 360}));
    assert_eq!(advance.send().await.expect("an answer").status(), StatusCode::OK);
    assert_eq!(rig.worker(&task, "slow").await["cache_breaks"], 0);
    rig.model.gate("old").open();
    rig.model.gate("end").reached().await;
    let worker = rig.worker_is(&task, "slow", "a break", |worker| worker["cache_breaks"] == 1).await;
    assert_eq!(worker["last_cache_break"], "provider");
    let metrics = rig.api().get("//metrics").await;
    let metrics = metrics.as_str().expect("figures are text");
    let line = "swarm_cache_breaks_total{cause=\"provider\"} 1";
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
    let id = worker["id"].as_str().expect("an id");
    let shown = rig.home.run(rig.repo.path(), &["show", id]).await.expect_code(0);
    let words = "not read as expected once, last: the provider had dropped it";
    assert!(shown.stdout.contains(words), "{}", shown.stdout);
    rig.model.gate("end").open();
    rig.done(&task).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_of_many_calls_still_finds_what_was_written_before_it() {
    let rig = rig_of("anthropic", "").await;
    rig.coordinator(Reply::call("Agent", agent("wide")));
    let wide = (0..30).fold(Reply::new(), |reply, n| {
        reply.tool("Read", json!({"file_path": "long.txt", "offset": n + 1, "limit": 1}))
    });
    rig.model.agent(&prompt("wide"), [wide, Reply::say("Done.")]);
    rig.model.rule(when().agent(&prompt("wide")), "Done.");
    let task = rig.submit().await;
    rig.done(&task).await;
    let requests = rig.model.requests_of(&prompt("wide"));
    let used: Vec<Usage> =
        requests.iter().map(|request| request.usage().expect("each was answered")).collect();
    assert!(used[1].cache_read * 100 >= used[0].prompt() * 95, "{used:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cache_is_kept_alive_while_a_command_runs_and_while_workers_do() {
    let model = ModelServer::start();
    let mut home = SwarmHome::new(&model);
    home.set("SWARM_MODEL", "lab/test-model");
    // A cache that forgets within five seconds.
    let settings = format!(
        "cache_keepalive = true\n[endpoints.lab]\n{WINDOW}api = \"anthropic\"\nbase_url = \"{}\"\n\
         key_env = \"ANTHROPIC_API_KEY\"\ncache_ttl = \"5s\"\n",
        model.url()
    );
    let rig = Rig::made(model, home, TestRepo::new(), &settings).await;
    rig.coordinator(Reply::call("Agent", agent("slow")));
    let waits = json!({"command": "sleep 12; echo x > a.txt", "description": "wait"});
    rig.model.agent(&prompt("slow"), [Reply::call("Bash", waits), Reply::say("Done.")]);
    let task = rig.submit().await;
    let reads_of = |agent: &str, requests: &[Request]| {
        requests.iter().filter(|request| request.agent_key.contains(agent) && request.only_reads()).count()
    };
    rig.model
        .wait_for("both to be kept alive twice", |requests| {
            let of_worker = reads_of(&prompt("slow"), requests);
            (of_worker >= 2 && reads_of(COORDINATE, requests) >= 2).then_some(())
        })
        .await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    // Each was counted, and what was kept was read.
    let requests = rig.model.requests();
    for agent in [prompt("slow"), COORDINATE.to_owned()] {
        let own: Vec<_> = requests.iter().filter(|request| request.agent_key.contains(&agent)).collect();
        let last = own.last().expect("it asked").usage().expect("it was answered");
        assert!(last.cache_read > 0 && !own[own.len() - 1].only_reads(), "{agent}: {last:?}");
    }
    let figures = ["input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"];
    // A read that was under way at the end is counted when it has ended.
    eventually(SOON, "all that was charged to be counted", async || {
        let used = rig.model.requests();
        let used = used.iter().filter_map(|request| request.usage());
        let charged: u64 = used.map(|usage| usage.prompt() + usage.output).sum();
        let session = rig.session(&task).await["session"]["usage"].clone();
        let counted: u64 = figures.iter().filter_map(|name| session[name].as_u64()).sum();
        if counted == charged { Ok(()) } else { Err(format!("{counted} of {charged}: {session}")) }
    })
    .await;
    let helpers = rig.events(&task, "coordinator.helper").await;
    assert!(helpers.iter().all(|event| event["purpose"] == "keepalive") && helpers.len() >= 2);
}

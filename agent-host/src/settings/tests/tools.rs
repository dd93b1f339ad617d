use super::*;

#[test]
fn settings_of_single_tools() {
    let text = "[web]\nallow_private = [\"127.0.0.1:8080\", \"10.0.0.0/8\"]\n\
               search_url = \"https://search.example.com/?q={query}\"\nsearch_key_env = \"SEARCH_KEY\"\n\
               [remote]\nurl = \"https://swarm.example.com\"\ntoken_env = \"REMOTE_TOKEN\"\nrepo = \"/srv/app\"\n\
               [lsp]\nservers = [\".Zig,zon: zls --stdio\"]\n[repl]\nenabled = true\n";
    let config = home(text).unwrap();
    let tools = &config.tools;
    assert_eq!(tools.web.allow_private, ["127.0.0.1:8080", "10.0.0.0/8"]);
    let search = tools.web.search.as_ref().unwrap();
    assert_eq!(search.key_env.as_deref(), Some("SEARCH_KEY"));
    assert_eq!(search.key_header, "authorization: Bearer {key}");
    assert_eq!(
        [&*search.results, &*search.title, &*search.url, &*search.snippet],
        ["/results", "/title", "/url", "/content"]
    );
    let server = &tools.language_servers[0];
    assert_eq!(
        (&*server.extensions, &*server.command),
        (&["zig".to_owned(), "zon".to_owned()][..], &["zls".to_owned(), "--stdio".to_owned()][..])
    );
    assert!(tools.repl);
    let variables: Vec<_> = tools.key_variables().collect();
    assert_eq!(variables, [("web.search", "SEARCH_KEY"), ("remote", "REMOTE_TOKEN")]);
    assert_eq!(tools.remote.as_ref().unwrap().repo.as_deref(), Some("/srv/app"));
    let env = [("SWARM_WEB_ALLOW_PRIVATE".to_owned(), "10.0.0.1, ::1".to_owned())];
    let config = Config::new(&ConfigInputs { env: &env, ..ConfigInputs::default() }).unwrap();
    assert_eq!(config.tools.web.allow_private, ["10.0.0.1", "::1"]);
    let none = Config::new(&ConfigInputs::default()).unwrap().tools;
    assert_eq!(none, swarm_protocol::launch::ToolSettings::default(), "nothing is on by itself");
    for (text, words) in [
        ("web.allow_private = [\"localhost\"]", "must be a list of addresses"),
        ("web.search_url = \"https://search.example.com/\"", "has {query} in it"),
        ("web.search_key_env = \"sk-123\"", "not the key itself"),
        ("web.search_key_header = \"x-key: abc\"", "must be a header such as"),
        ("web.search_pointers = [\"/a\"]", "must be four JSON pointers"),
        ("remote.url = \"swarm.example.com\"", "must be"),
        ("remote.token_env = \"abc-1\"", "not the key itself"),
        ("lsp.servers = [\"zls\"]", "must be a list of servers"),
        ("lsp.servers = [\"*.zig: zls\"]", "must be a list of servers"),
    ] {
        let error = home(text).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
    // What a repository says of the web is refused, what it would run is passed over until it is trusted.
    let repository = |text: &str, is_trusted| {
        let repository = toml("swarm.toml", text);
        let inputs = ConfigInputs {
            repository: Some(&repository),
            repository_is_trusted: is_trusted,
            ..ConfigInputs::default()
        };
        Config::new(&inputs).map(|config| config.tools)
    };
    let of_server = [
        "web.allow_private = [\"127.0.0.1\"]",
        "web.search_url = \"http://x/{query}\"",
        "remote.url = \"http://x\"",
    ];
    for text in of_server {
        assert!(repository(text, true).unwrap_err().to_string().contains("belongs in config.toml"));
    }
    let runs = "repl.enabled = true\nlsp.servers = [\"rs: ./evil\"]\n";
    assert_eq!(repository(runs, false).unwrap(), none);
    assert!(repository(runs, true).unwrap().repl);
}

//! Values of single tools' settings: addresses, the search service and how its answers are laid out, language servers.

use swarm_protocol::launch::{LanguageServer, RemoteServer, SearchService, ToolSettings, WebSettings};

use super::{
    keys::Kind,
    toml_file::Raw,
    value::{Value, texts},
};
use crate::AllowedAddress;

pub(super) fn value_of(kind: Kind, raw: &Raw) -> Option<Value> {
    match (kind, raw) {
        (Kind::Addresses, Raw::List(list)) => texts(list, |text| text.parse::<AllowedAddress>().is_ok()),
        // A variable holds them with commas between.
        (Kind::Addresses, Raw::Text(text)) => {
            let list: Vec<Raw> = text.split(',').map(|part| Raw::Text(part.trim().to_owned())).collect();
            value_of(kind, &Raw::List(list))
        }
        (Kind::SearchUrl, Raw::Text(text)) => {
            let is_url = text.starts_with("https://") || text.starts_with("http://");
            (is_url && text.contains("{query}")).then(|| Value::Text(text.clone()))
        }
        (Kind::Variable, Raw::Text(text)) => {
            let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            (!text.is_empty() && text.chars().all(is_name)).then(|| Value::Text(text.clone()))
        }
        (Kind::KeyHeader, Raw::Text(text)) => is_key_header(text).then(|| Value::Text(text.clone())),
        (Kind::Pointers, Raw::List(list)) if list.len() == 4 => {
            texts(list, |text| text.is_empty() || text.starts_with('/'))
        }
        (Kind::LanguageServers, Raw::List(list)) => texts(list, |text| language_server(text).is_some()),
        _ => None,
    }
}

/// `zig,zon: zls --stdio`
fn language_server(text: &str) -> Option<LanguageServer> {
    let (extensions, command) = text.split_once(':')?;
    let extension = |text: &str| {
        let text = text.trim().trim_start_matches('.').to_ascii_lowercase();
        let is_plain = |c: char| c.is_alphanumeric() || "_-+".contains(c);
        (!text.is_empty() && text.chars().all(is_plain)).then_some(text)
    };
    let extensions: Vec<String> = extensions.split(',').map(extension).collect::<Option<_>>()?;
    let command: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
    (!command.is_empty()).then_some(LanguageServer { extensions, command })
}

fn is_key_header(text: &str) -> bool {
    text.split_once(':').is_some_and(|(name, value)| {
        !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
            && value.contains("{key}")
    })
}

/// The settings as the tools take them.
pub(super) fn settings(
    text: &impl Fn(&str) -> Option<String>,
    texts: &impl Fn(&str) -> Vec<String>,
    flag: &impl Fn(&str) -> bool,
) -> ToolSettings {
    let search = text("web.search_url").and_then(|endpoint| {
        let pointers = texts("web.search_pointers");
        let [results, title, url, snippet] = <[String; 4]>::try_from(pointers).ok()?;
        Some(SearchService {
            endpoint,
            key_env: text("web.search_key_env"),
            key_header: text("web.search_key_header").unwrap_or_default(),
            results,
            title,
            url,
            snippet,
        })
    });
    ToolSettings {
        web: WebSettings { allow_private: texts("web.allow_private"), search },
        language_servers: texts("lsp.servers").iter().filter_map(|text| language_server(text)).collect(),
        repl: flag("repl.enabled"),
        remote: text("remote.url").map(|url| RemoteServer {
            url,
            token_env: text("remote.token_env"),
            repo: text("remote.repo"),
        }),
    }
}

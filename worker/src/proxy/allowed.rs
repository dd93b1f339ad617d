//! Which hosts and addresses a command may reach. Pure.

use std::net::{IpAddr, SocketAddr};

/// Ports that a name without one means.
const USUAL_PORTS: [u16; 2] = [80, 443];

/// The list of the setting `sandbox.network`: `crates.io`, `*.example.org`, `10.0.0.5:8080`, `[::1]:80`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowed(Vec<Entry>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    host: Host,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    Address(IpAddr),
    Name(String),
    /// All below, and not the name itself.
    Below(String),
}

impl Allowed {
    /// What does not parse allows nothing.
    pub fn new<'a>(list: impl IntoIterator<Item = &'a str>) -> Self {
        Self(list.into_iter().filter_map(Entry::parse).collect())
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a request may name this host.
    #[must_use]
    pub fn names(&self, host: &str, port: u16) -> bool {
        let host = Host::parse(host);
        self.0
            .iter()
            .any(|entry| entry.allows_port(port) && host.as_ref().is_some_and(|host| entry.host.covers(host)))
    }

    /// Whether what a host resolved to may be connected to: a public address, or one that is listed itself.
    /// Else a name that its owner points at this machine would lead past the list.
    #[must_use]
    pub fn reaches(&self, address: IpAddr, port: u16) -> bool {
        let address = plain(address);
        agent_host::may_reach(SocketAddr::new(address, port), &[]).is_ok()
            || self.0.iter().any(|entry| entry.allows_port(port) && entry.host == Host::Address(address))
    }
}

impl Entry {
    fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.rsplit_once(':') {
            // An IPv6 address has colons of its own, and brackets before a port.
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                (host, Some(port.parse().ok()?))
            }
            _ => (text, None),
        };
        Some(Self { host: Host::parse(host)?, port })
    }

    fn allows_port(&self, port: u16) -> bool {
        self.port.map_or_else(|| USUAL_PORTS.contains(&port), |own| own == port)
    }
}

impl Host {
    fn parse(text: &str) -> Option<Self> {
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        if let Ok(address) = bare.parse() {
            return Some(Self::Address(plain(address)));
        }
        let name = text.trim_end_matches('.').to_ascii_lowercase();
        match name.strip_prefix("*.") {
            _ if name.is_empty() => None,
            Some(below) => Some(Self::Below(below.to_owned())),
            None => Some(Self::Name(name)),
        }
    }

    fn covers(&self, asked: &Self) -> bool {
        match (self, asked) {
            (Self::Below(below), Self::Name(name)) => {
                name.strip_suffix(below.as_str()).is_some_and(|front| front.len() > 1 && front.ends_with('.'))
            }
            // Nobody asks for a pattern.
            (_, Self::Below(_)) => false,
            (listed, asked) => listed == asked,
        }
    }
}

/// An IPv4 address in the clothes of version 6 is that address.
fn plain(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(six) => six.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_named_by_the_list() {
        let allowed =
            Allowed::new(["crates.io", "*.Example.org", "local.test:8080", "10.0.0.5:81", "::1", "x:y"]);
        for (host, port, expected) in [
            ("crates.io", 443, true),
            ("CRATES.io.", 80, true),
            ("crates.io", 22, false),
            ("evilcrates.io", 443, false),
            ("crates.io.evil.com", 443, false),
            ("a.example.org", 443, true),
            ("a.b.example.org", 443, true),
            ("example.org", 443, false),
            (".example.org", 443, false),
            ("*.example.org", 443, false),
            ("local.test", 8080, true),
            ("local.test", 80, false),
            ("10.0.0.5", 81, true),
            ("10.0.0.6", 81, false),
            ("[::1]", 80, true),
            ("::ffff:10.0.0.5", 81, true),
            ("x", 80, false),
            ("", 80, false),
        ] {
            assert_eq!(allowed.names(host, port), expected, "{host}:{port}");
        }
    }

    #[test]
    fn private_addresses_are_reached_only_when_they_are_listed_themselves() {
        let allowed = Allowed::new(["crates.io", "10.0.0.5:81"]);
        for (address, port, expected) in [
            ("93.184.216.34", 443, true),
            // Public by its number, a cloud's own by what answers there.
            ("168.63.129.16", 80, false),
            ("2606:2800:220:1::1", 443, true),
            ("10.0.0.5", 81, true),
            ("10.0.0.5", 80, false),
            ("127.0.0.1", 80, false),
            ("169.254.169.254", 80, false),
            ("192.168.1.1", 80, false),
            ("172.16.0.1", 80, false),
            ("100.64.0.1", 80, false),
            ("0.0.0.0", 80, false),
            ("255.255.255.255", 80, false),
            ("224.0.0.1", 80, false),
            ("198.18.0.1", 80, false),
            ("::1", 80, false),
            ("::", 80, false),
            ("::ffff:127.0.0.1", 80, false),
            ("fe80::1", 80, false),
            ("fd00::1", 80, false),
            ("ff02::1", 80, false),
            ("64:ff9b::7f00:1", 80, false),
            ("2002:7f00:1::", 80, false),
        ] {
            assert_eq!(allowed.reaches(address.parse().unwrap(), port), expected, "{address}:{port}");
        }
    }
}

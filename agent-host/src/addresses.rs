//! Which addresses of the network a tool may reach. Pure: names are resolved by the caller, who then connects to
//! the address that was checked here and to no other.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// An exception that a person made: `10.1.0.0/16`, `127.0.0.1`, `127.0.0.1:8080`, `[::1]:8080`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllowedAddress {
    net: IpNet,
    /// None: every port.
    port: Option<u16>,
}

/// What is no [`AllowedAddress`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an address, an address with a port, or a network such as 10.0.0.0/8")]
pub struct NotAnAddress;

impl FromStr for AllowedAddress {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self { net: IpNet::from(address.ip()), port: Some(address.port()) });
        }
        if let Ok(address) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
            return Ok(Self { net: IpNet::from(address), port: None });
        }
        text.parse().map(|net| Self { net, port: None }).map_err(|_| NotAnAddress)
    }
}

impl AllowedAddress {
    fn covers(&self, address: SocketAddr) -> bool {
        self.net.contains(&address.ip()) && self.port.is_none_or(|port| port == address.port())
    }
}

/// Why an address is not for a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotPublic {
    /// This machine.
    Loopback,
    /// A network of somebody's own.
    Private,
    /// The cable it hangs on; clouds keep their metadata there.
    LinkLocal,
    /// A provider's network behind its address translation.
    CarrierGrade,
    /// Many receivers.
    Multicast,
    /// A cloud's service for its own machines.
    Metadata,
    /// Not assigned to anybody's host, or a form that hides another address.
    Reserved,
}

impl fmt::Display for NotPublic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Loopback => "an address of this machine",
            Self::Private => "an address of a private network",
            Self::LinkLocal => "a link-local address",
            Self::CarrierGrade => "an address behind a carrier's translation",
            Self::Multicast => "a multicast address",
            Self::Metadata => "an address of a cloud's metadata service",
            Self::Reserved => "a reserved address",
        })
    }
}

/// Says whether a tool may connect there: to the public internet, and to what a person allowed.
///
/// # Errors
/// What the address is instead.
pub fn may_reach(address: SocketAddr, allowed: &[AllowedAddress]) -> Result<(), NotPublic> {
    // An address in IPv6's clothes is allowed as what it is.
    let plain = SocketAddr::new(address.ip().to_canonical(), address.port());
    if allowed.iter().any(|entry| entry.covers(address) || entry.covers(plain)) {
        return Ok(());
    }
    match plain.ip() {
        IpAddr::V4(address) => public_v4(address),
        IpAddr::V6(address) => public_v6(address),
    }
}

/// Blocks of the IANA special-purpose registry for IPv4 that no public host has (RFC 6890 and its updates).
const V4: [([u8; 4], u8, NotPublic); 16] = [
    ([0, 0, 0, 0], 8, NotPublic::Reserved),
    ([10, 0, 0, 0], 8, NotPublic::Private),
    ([100, 64, 0, 0], 10, NotPublic::CarrierGrade),
    ([127, 0, 0, 0], 8, NotPublic::Loopback),
    // Azure's WireServer: a public number that answers inside only.
    ([168, 63, 129, 16], 32, NotPublic::Metadata),
    ([169, 254, 0, 0], 16, NotPublic::LinkLocal),
    ([172, 16, 0, 0], 12, NotPublic::Private),
    ([192, 0, 0, 0], 24, NotPublic::Reserved),
    ([192, 0, 2, 0], 24, NotPublic::Reserved),
    ([192, 88, 99, 0], 24, NotPublic::Reserved),
    ([192, 168, 0, 0], 16, NotPublic::Private),
    ([198, 18, 0, 0], 15, NotPublic::Reserved),
    ([198, 51, 100, 0], 24, NotPublic::Reserved),
    ([203, 0, 113, 0], 24, NotPublic::Reserved),
    ([224, 0, 0, 0], 4, NotPublic::Multicast),
    ([240, 0, 0, 0], 4, NotPublic::Reserved),
];

fn public_v4(address: Ipv4Addr) -> Result<(), NotPublic> {
    let is_in = |(octets, length, _): &&([u8; 4], u8, NotPublic)| {
        Ipv4Net::new_assert(Ipv4Addr::from(*octets), *length).contains(&address)
    };
    V4.iter().find(is_in).map_or(Ok(()), |(.., why)| Err(*why))
}

fn public_v6(address: Ipv6Addr) -> Result<(), NotPublic> {
    let is_in = |network: [u16; 8], length| Ipv6Net::new_assert(network.into(), length).contains(&address);
    if address.is_loopback() {
        return Err(NotPublic::Loopback);
    }
    if address.is_multicast() {
        return Err(NotPublic::Multicast);
    }
    if is_in([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10) {
        return Err(NotPublic::LinkLocal);
    }
    if is_in([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7) {
        return Err(NotPublic::Private);
    }
    // NAT64: the IPv4 address in it is where the packet goes.
    if is_in([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96) {
        let [.., a, b, c, d] = address.octets();
        return public_v4(Ipv4Addr::new(a, b, c, d));
    }
    // Only this part is given out to hosts; in it, what hides another address or is nobody's: Teredo and other
    // protocols, documentation, 6to4.
    let is_unicast = is_in([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);
    let is_special = is_in([0x2001, 0, 0, 0, 0, 0, 0, 0], 23)
        || is_in([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32)
        || is_in([0x2002, 0, 0, 0, 0, 0, 0, 0], 16)
        || is_in([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20);
    if is_unicast && !is_special { Ok(()) } else { Err(NotPublic::Reserved) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        SocketAddr::new(text.parse().unwrap(), 443)
    }

    #[test]
    fn only_addresses_of_public_hosts_are_reached() {
        let refused = [
            ("0.0.0.0", NotPublic::Reserved),
            ("10.255.0.1", NotPublic::Private),
            ("100.64.0.1", NotPublic::CarrierGrade),
            ("100.100.100.200", NotPublic::CarrierGrade),
            ("100.127.255.255", NotPublic::CarrierGrade),
            ("127.0.0.1", NotPublic::Loopback),
            ("127.255.255.254", NotPublic::Loopback),
            ("168.63.129.16", NotPublic::Metadata),
            ("169.254.169.254", NotPublic::LinkLocal),
            ("172.16.0.1", NotPublic::Private),
            ("172.31.255.255", NotPublic::Private),
            ("192.0.0.170", NotPublic::Reserved),
            ("192.168.1.1", NotPublic::Private),
            ("198.19.0.1", NotPublic::Reserved),
            ("224.0.0.1", NotPublic::Multicast),
            ("239.255.255.250", NotPublic::Multicast),
            ("255.255.255.255", NotPublic::Reserved),
            ("::", NotPublic::Reserved),
            ("::1", NotPublic::Loopback),
            ("::ffff:127.0.0.1", NotPublic::Loopback),
            ("::ffff:169.254.169.254", NotPublic::LinkLocal),
            // The old form of an IPv4 address in IPv6.
            ("::127.0.0.1", NotPublic::Reserved),
            ("64:ff9b::10.0.0.1", NotPublic::Private),
            ("64:ff9b::a9fe:a9fe", NotPublic::LinkLocal),
            // A NAT64 of somebody's own.
            ("64:ff9b:1::808:808", NotPublic::Reserved),
            ("fe80::1", NotPublic::LinkLocal),
            ("fd00:ec2::254", NotPublic::Private),
            ("fec0::1", NotPublic::Reserved),
            ("ff02::1", NotPublic::Multicast),
            ("2001::1", NotPublic::Reserved),
            ("2001:db8::1", NotPublic::Reserved),
            ("2002:7f00:1::", NotPublic::Reserved),
        ];
        for (text, why) in refused {
            assert_eq!(may_reach(at(text), &[]), Err(why), "{text}");
        }
        for text in [
            "1.1.1.1",
            "100.63.255.255",
            "100.128.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.167.255.255",
            "223.255.255.255",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2606:4700::1111",
            "2a00:1450::1",
        ] {
            assert_eq!(may_reach(at(text), &[]), Ok(()), "{text}");
        }
    }

    #[test]
    fn what_a_person_allowed_is_reached_on_its_port_alone() {
        let allowed = |text: &str| [text.parse::<AllowedAddress>().unwrap()];
        let to = |text: &str| text.parse::<SocketAddr>().unwrap();
        let cases = [
            ("127.0.0.1:8080", "127.0.0.1:8080", true),
            ("127.0.0.1:8080", "127.0.0.1:8081", false),
            ("127.0.0.1:8080", "127.0.0.2:8080", false),
            ("127.0.0.1:8080", "[::ffff:127.0.0.1]:8080", true),
            ("127.0.0.1", "127.0.0.1:22", true),
            ("10.1.0.0/16", "10.1.255.1:80", true),
            ("10.1.0.0/16", "10.2.0.1:80", false),
            ("[::1]:8080", "[::1]:8080", true),
            ("::1", "[::1]:1", true),
            ("fd00::/8", "[fd12::1]:443", true),
        ];
        for (rule, address, expected) in cases {
            assert_eq!(may_reach(to(address), &allowed(rule)).is_ok(), expected, "{rule} {address}");
        }
        for wrong in ["", "localhost", "10.0.0.0/33", "127.0.0.1:x", "*", "127.1"] {
            assert_eq!(wrong.parse::<AllowedAddress>(), Err(NotAnAddress), "{wrong}");
        }
    }
}

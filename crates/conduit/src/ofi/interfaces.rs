//! The network interfaces of this machine that are up and have an IPv4 address.

use std::ffi::CStr;
use std::net::Ipv4Addr;

/// An address of an interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// As the system calls it: `eth0`.
    pub name: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// How many bits of it are those of its subnet.
    pub prefix: u8,
    /// Does it lead nowhere but back?
    pub is_loopback: bool,
}

/// All, in the system's order; none if it does not say.
pub fn interfaces() -> Vec<Interface> {
    let (mut found, mut list) = (vec![], std::ptr::null_mut());
    // SAFETY: fills in a list, which is freed below.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return found;
    }
    let mut next = list;
    while !next.is_null() {
        // SAFETY: an entry of the list, which is not freed yet; addresses of this family have this type, and names are C strings.
        unsafe {
            let entry = &*next;
            let flags = entry.ifa_flags as i32;
            if !entry.ifa_addr.is_null()
                && i32::from((*entry.ifa_addr).sa_family) == libc::AF_INET
                && flags & libc::IFF_UP != 0
            {
                let address = |a: *mut libc::sockaddr| {
                    Ipv4Addr::from((*a.cast::<libc::sockaddr_in>()).sin_addr.s_addr.to_ne_bytes())
                };
                let mask = if entry.ifa_netmask.is_null() { Ipv4Addr::BROADCAST } else { address(entry.ifa_netmask) };
                found.push(Interface {
                    name: CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned(),
                    address: address(entry.ifa_addr),
                    prefix: u32::from(mask).leading_ones() as u8,
                    is_loopback: flags & libc::IFF_LOOPBACK != 0,
                });
            }
            next = entry.ifa_next;
        }
    }
    // SAFETY: from getifaddrs, once.
    unsafe { libc::freeifaddrs(list) };
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_one() {
        // Containers without a network may have it down.
        if let Some(lo) = interfaces().iter().find(|i| i.name == "lo") {
            assert!(lo.is_loopback && lo.address.is_loopback() && lo.prefix == 8, "{lo:?}");
        }
    }
}

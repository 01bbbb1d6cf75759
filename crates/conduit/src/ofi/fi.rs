//! What we call of libfabric: a few functions that it exports and the tables behind its objects.
//!
//! Names are those of its manual pages. Most of its "functions" are inline calls through tables of function pointers;
//! those tables are declared here as far as they are used. Layouts are those of 1.17, which later versions only extended
//! at the end; what *we* allocate and they fill has room for that ([`fi_cq_err_entry`]). A test compares every offset and
//! constant with the C headers where they are installed.
//!
//! The library is opened when it is first needed, so a program that never leaves its node does not need it. It stays
//! open: it has handlers that run at exit.
#![allow(non_camel_case_types)]

use libc::{c_char, c_int, c_void, iovec, size_t, ssize_t};
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

/// The API that we speak, and the oldest library that we use.
pub const API: u32 = version(1, 17);

pub const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

/// The functions that the library exports.
#[derive(Debug)]
pub struct Library {
    pub fi_getinfo: FiGetinfo,
    pub fi_freeinfo: unsafe extern "C" fn(*mut fi_info),
    pub fi_dupinfo: unsafe extern "C" fn(*const fi_info) -> *mut fi_info,
    pub fi_fabric: unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int,
    fi_strerror: unsafe extern "C" fn(c_int) -> *const c_char,
    /// Its version, as [`version`] makes them.
    pub version: u32,
}

type FiGetinfo =
    unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int;

/// The library, opened once: `libfabric.so.1`, or the file that `PARTAGE_LIBFABRIC` names.
pub fn library() -> Result<&'static Library, String> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    let opened = LIBRARY.get_or_init(|| {
        let named = std::env::var_os("PARTAGE_LIBFABRIC").filter(|name| !name.is_empty());
        Library::open(named.as_deref().unwrap_or(OsStr::new("libfabric.so.1")))
    });
    opened.as_ref().map_err(String::clone)
}

impl Library {
    fn open(file: &OsStr) -> Result<Library, String> {
        let missing = |why: &str| {
            format!("libfabric is not there ({why}): install libfabric1 (Debian) or libfabric (others), 1.17 or later")
        };
        let name = CString::new(file.as_bytes()).map_err(|_| missing("PARTAGE_LIBFABRIC has a zero byte"))?;
        // SAFETY: a C string; the library's constructors are as trustworthy as the user's choice of it.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(missing(&last_dl_error()));
        }
        let symbol = |name: &CStr| {
            // SAFETY: a handle that `dlopen` has just given and that nobody closes, and a C string.
            let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
            let why = || missing(&format!("{} has no {}", file.to_string_lossy(), name.to_string_lossy()));
            (!found.is_null()).then_some(found).ok_or_else(why)
        };
        let (getinfo, freeinfo) = (symbol(c"fi_getinfo")?, symbol(c"fi_freeinfo")?);
        let (dupinfo, fabric) = (symbol(c"fi_dupinfo")?, symbol(c"fi_fabric")?);
        let (fi_version, strerror) = (symbol(c"fi_version")?, symbol(c"fi_strerror")?);
        // SAFETY: the manual declares it as a function without arguments that gives a u32; it needs nothing opened.
        let found = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> u32>(fi_version)() };
        if found < API {
            return Err(format!("libfabric {} is too old: 1.17 or later", text_of(found)));
        }
        // SAFETY: not null, and each a function that fabric(7) declares with the type of its field, since 1.0.
        Ok(unsafe {
            Library {
                fi_getinfo: std::mem::transmute::<*mut c_void, FiGetinfo>(getinfo),
                fi_freeinfo: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut fi_info)>(freeinfo),
                fi_dupinfo: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const fi_info) -> *mut fi_info>(
                    dupinfo,
                ),
                fi_fabric: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int,
                >(fabric),
                fi_strerror: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> *const c_char>(strerror),
                version: found,
            }
        })
    }

    /// What an error means. The sign does not matter.
    pub fn error(&self, code: i64) -> String {
        // SAFETY: any number will do; it gives a C string that nobody frees, or null.
        let text = unsafe { (self.fi_strerror)((code as c_int).wrapping_abs()) };
        if text.is_null() {
            return format!("error {code}");
        }
        // SAFETY: not null, so a C string; constants, or a buffer of the calling thread.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// A version as people write it.
pub fn text_of(version: u32) -> String {
    format!("{}.{}", version >> 16, version & 0xffff)
}

fn last_dl_error() -> String {
    // SAFETY: gives a C string of the calling thread that lives until its next call, or null.
    let text = unsafe { libc::dlerror() };
    match text.is_null() {
        true => "no reason given".into(),
        // SAFETY: not null, and copied before the next call.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    }
}

/// Declares a structure of C, and what a test needs to compare it with the headers.
macro_rules! structures {
    ($($(#[$meta:meta])* struct $name:ident { $($field:ident: $type:ty,)* })*) => {
        $($(#[$meta])* #[repr(C)] pub struct $name { $(pub $field: $type,)* })*
        #[cfg(test)]
        fn layouts() -> Vec<(&'static str, &'static str, usize)> {
            vec![$($((stringify!($name), stringify!($field), std::mem::offset_of!($name, $field)),)*)*]
        }
    };
}

macro_rules! constants {
    ($($name:ident: $type:ty = $value:expr;)*) => {
        $(pub const $name: $type = $value;)*
        #[cfg(test)]
        fn values() -> Vec<(&'static str, i64)> {
            vec![$((stringify!($name), $name as i64),)*]
        }
    };
}

constants! {
    FI_MSG: u64 = 1 << 1;
    FI_RMA: u64 = 1 << 2;
    FI_ATOMIC: u64 = 1 << 4;
    FI_READ: u64 = 1 << 8;
    FI_WRITE: u64 = 1 << 9;
    FI_RECV: u64 = 1 << 10;
    FI_SEND: u64 = 1 << 11;
    FI_TRANSMIT: u64 = 1 << 11;
    FI_REMOTE_READ: u64 = 1 << 12;
    FI_REMOTE_WRITE: u64 = 1 << 13;
    FI_MULTI_RECV: u64 = 1 << 16;
    FI_REMOTE_CQ_DATA: u64 = 1 << 17;
    FI_COMPLETION: u64 = 1 << 24;
    FI_DELIVERY_COMPLETE: u64 = 1 << 28;
    FI_SOURCE: u64 = 1 << 57;
    FI_CONTEXT: u64 = 1 << 59;
    FI_CONTEXT2: u64 = 1 << 52;
    FI_RX_CQ_DATA: u64 = 1 << 56;
    FI_ORDER_SAS: u64 = 1 << 8;
    FI_MR_LOCAL: c_int = 1 << 2;
    FI_MR_VIRT_ADDR: c_int = 1 << 4;
    FI_MR_ALLOCATED: c_int = 1 << 5;
    FI_MR_PROV_KEY: c_int = 1 << 6;
    FI_MR_ENDPOINT: c_int = 1 << 9;
    FI_EP_RDM: c_int = 3;
    FI_THREAD_SAFE: c_int = 1;
    FI_PROGRESS_MANUAL: c_int = 2;
    FI_RM_ENABLED: c_int = 2;
    FI_GETWAIT: c_int = 5;
    FI_ENABLE: c_int = 6;
    FI_WAIT_NONE: c_int = 0;
    FI_WAIT_FD: c_int = 3;
    FI_CQ_FORMAT_DATA: c_int = 3;
    FI_OPT_ENDPOINT: c_int = 0;
    FI_OPT_MIN_MULTI_RECV: c_int = 0;
    FI_EAGAIN: ssize_t = 11;
    FI_EAVAIL: ssize_t = 259;
    FI_ETRUNC: c_int = 265;
    FI_ENOKEY: c_int = 266;
    FI_ADDR_UNSPEC: u64 = !0;
    FI_KEY_NOTAVAIL: u64 = !0;
    FI_INT32: c_int = 4;
    FI_UINT32: c_int = 5;
    FI_INT64: c_int = 6;
    FI_UINT64: c_int = 7;
    FI_FLOAT: c_int = 8;
    FI_DOUBLE: c_int = 9;
    FI_MIN: c_int = 0;
    FI_MAX: c_int = 1;
    FI_SUM: c_int = 2;
    FI_PROD: c_int = 3;
    FI_BOR: c_int = 6;
    FI_BAND: c_int = 7;
    FI_BXOR: c_int = 9;
    FI_ATOMIC_READ: c_int = 10;
    FI_ATOMIC_WRITE: c_int = 11;
    FI_CSWAP: c_int = 12;
}

type Slot = *const c_void;
type Send = unsafe extern "C" fn(*mut fid_ep, *const c_void, size_t, *mut c_void, u64, *mut c_void) -> ssize_t;
type Read = unsafe extern "C" fn(*mut fid_ep, *mut c_void, size_t, *mut c_void, u64, u64, u64, *mut c_void) -> ssize_t;
type Register =
    unsafe extern "C" fn(*mut fid, *const c_void, size_t, u64, u64, u64, u64, *mut *mut fid_mr, *mut c_void) -> c_int;
type Insert = unsafe extern "C" fn(*mut fid_av, *const c_void, size_t, *mut u64, u64, *mut c_void) -> c_int;
/// Operands and their description; where the old value goes, and its; then whom, where, what, of which type, and the context.
type Fetch = unsafe extern "C" fn(
    *mut fid_ep,
    *const c_void,
    size_t,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    u64,
    u64,
    u64,
    c_int,
    c_int,
    *mut c_void,
) -> ssize_t;
/// The same, with what is expected and its description after the operands'.
type Compare = unsafe extern "C" fn(
    *mut fid_ep,
    *const c_void,
    size_t,
    *mut c_void,
    *const c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    u64,
    u64,
    u64,
    c_int,
    c_int,
    *mut c_void,
) -> ssize_t;
type Valid = unsafe extern "C" fn(*mut fid_ep, c_int, c_int, *mut size_t) -> c_int;
type Words = unsafe extern "C" fn(*mut fid_cq, c_int, *const c_void, *mut c_char, size_t) -> *const c_char;

structures! {
    struct fid {
        fclass: size_t,
        context: *mut c_void,
        ops: *mut fi_ops,
    }

    struct fi_ops {
        size: size_t,
        close: unsafe extern "C" fn(*mut fid) -> c_int,
        bind: unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int,
        control: unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int,
    }

    struct fi_tx_attr {
        caps: u64,
        mode: u64,
        op_flags: u64,
        msg_order: u64,
        comp_order: u64,
        inject_size: size_t,
        size: size_t,
        iov_limit: size_t,
        rma_iov_limit: size_t,
        tclass: u32,
    }

    struct fi_rx_attr {
        caps: u64,
        mode: u64,
        op_flags: u64,
        msg_order: u64,
        comp_order: u64,
        total_buffered_recv: size_t,
        size: size_t,
        iov_limit: size_t,
    }

    struct fi_ep_attr {
        r#type: c_int,
        protocol: u32,
        protocol_version: u32,
        max_msg_size: size_t,
    }

    struct fi_domain_attr {
        domain: *mut fid_domain,
        name: *mut c_char,
        threading: c_int,
        control_progress: c_int,
        data_progress: c_int,
        resource_mgmt: c_int,
        av_type: c_int,
        mr_mode: c_int,
        mr_key_size: size_t,
        cq_data_size: size_t,
    }

    struct fi_fabric_attr {
        fabric: *mut fid_fabric,
        name: *mut c_char,
        prov_name: *mut c_char,
        prov_version: u32,
        api_version: u32,
    }

    struct fi_info {
        next: *mut fi_info,
        caps: u64,
        mode: u64,
        addr_format: u32,
        src_addrlen: size_t,
        dest_addrlen: size_t,
        src_addr: *mut c_void,
        dest_addr: *mut c_void,
        handle: *mut fid,
        tx_attr: *mut fi_tx_attr,
        rx_attr: *mut fi_rx_attr,
        ep_attr: *mut fi_ep_attr,
        domain_attr: *mut fi_domain_attr,
        fabric_attr: *mut fi_fabric_attr,
    }

    struct fid_fabric {
        fid: fid,
        ops: *mut fi_ops_fabric,
    }

    struct fi_ops_fabric {
        size: size_t,
        domain: unsafe extern "C" fn(*mut fid_fabric, *mut fi_info, *mut *mut fid_domain, *mut c_void) -> c_int,
        passive_ep: Slot,
        eq_open: Slot,
        wait_open: Slot,
        trywait: unsafe extern "C" fn(*mut fid_fabric, *mut *mut fid, c_int) -> c_int,
    }

    struct fid_domain {
        fid: fid,
        ops: *mut fi_ops_domain,
        mr: *mut fi_ops_mr,
    }

    struct fi_ops_domain {
        size: size_t,
        av_open: unsafe extern "C" fn(*mut fid_domain, *mut fi_av_attr, *mut *mut fid_av, *mut c_void) -> c_int,
        cq_open: unsafe extern "C" fn(*mut fid_domain, *mut fi_cq_attr, *mut *mut fid_cq, *mut c_void) -> c_int,
        endpoint: unsafe extern "C" fn(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) -> c_int,
    }

    struct fi_ops_mr {
        size: size_t,
        reg: Register,
    }

    struct fid_mr {
        fid: fid,
        mem_desc: *mut c_void,
        key: u64,
    }

    struct fi_av_attr {
        r#type: c_int,
        rx_ctx_bits: c_int,
        count: size_t,
        ep_per_node: size_t,
        name: *const c_char,
        map_addr: *mut c_void,
        flags: u64,
    }

    struct fid_av {
        fid: fid,
        ops: *mut fi_ops_av,
    }

    struct fi_ops_av {
        size: size_t,
        insert: Insert,
        insertsvc: Slot,
        insertsym: Slot,
        remove: Slot,
        lookup: Slot,
        straddr: unsafe extern "C" fn(*mut fid_av, *const c_void, *mut c_char, *mut size_t) -> *const c_char,
    }

    struct fi_cq_attr {
        size: size_t,
        flags: u64,
        format: c_int,
        wait_obj: c_int,
        signaling_vector: c_int,
        wait_cond: c_int,
        wait_set: *mut c_void,
    }

    struct fid_cq {
        fid: fid,
        ops: *mut fi_ops_cq,
    }

    struct fi_ops_cq {
        size: size_t,
        read: unsafe extern "C" fn(*mut fid_cq, *mut c_void, size_t) -> ssize_t,
        readfrom: Slot,
        readerr: unsafe extern "C" fn(*mut fid_cq, *mut fi_cq_err_entry, u64) -> ssize_t,
        sread: unsafe extern "C" fn(*mut fid_cq, *mut c_void, size_t, *const c_void, c_int) -> ssize_t,
        sreadfrom: Slot,
        signal: Slot,
        strerror: Words,
    }

    struct fi_cq_data_entry {
        op_context: *mut c_void,
        flags: u64,
        len: size_t,
        buf: *mut c_void,
        data: u64,
    }

    struct fi_cq_err_entry {
        op_context: *mut c_void,
        flags: u64,
        len: size_t,
        buf: *mut c_void,
        data: u64,
        tag: u64,
        olen: size_t,
        err: c_int,
        prov_errno: c_int,
        err_data: *mut c_void,
        err_data_size: size_t,
    }

    struct fid_ep {
        fid: fid,
        ops: *mut fi_ops_ep,
        cm: *mut fi_ops_cm,
        msg: *mut fi_ops_msg,
        rma: *mut fi_ops_rma,
        tagged: Slot,
        atomic: *mut fi_ops_atomic,
    }

    struct fi_ops_ep {
        size: size_t,
        cancel: Slot,
        getopt: Slot,
        setopt: unsafe extern "C" fn(*mut fid, c_int, c_int, *const c_void, size_t) -> c_int,
    }

    struct fi_ops_cm {
        size: size_t,
        setname: Slot,
        getname: unsafe extern "C" fn(*mut fid, *mut c_void, *mut size_t) -> c_int,
    }

    struct fi_ops_msg {
        size: size_t,
        recv: Slot,
        recvv: Slot,
        recvmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg, u64) -> ssize_t,
        send: Send,
        sendv: Slot,
        sendmsg: Slot,
        inject: unsafe extern "C" fn(*mut fid_ep, *const c_void, size_t, u64) -> ssize_t,
    }

    struct fi_msg {
        msg_iov: *const iovec,
        desc: *mut *mut c_void,
        iov_count: size_t,
        addr: u64,
        context: *mut c_void,
        data: u64,
    }

    struct fi_ops_rma {
        size: size_t,
        read: Read,
        readv: Slot,
        readmsg: Slot,
        write: Slot,
        writev: Slot,
        writemsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg_rma, u64) -> ssize_t,
        inject: unsafe extern "C" fn(*mut fid_ep, *const c_void, size_t, u64, u64, u64) -> ssize_t,
    }

    struct fi_ops_atomic {
        size: size_t,
        write: Slot,
        writev: Slot,
        writemsg: Slot,
        inject: Slot,
        readwrite: Fetch,
        readwritev: Slot,
        readwritemsg: Slot,
        compwrite: Compare,
        compwritev: Slot,
        compwritemsg: Slot,
        writevalid: Slot,
        readwritevalid: Valid,
        compwritevalid: Valid,
    }

    struct fi_rma_iov {
        addr: u64,
        len: size_t,
        key: u64,
    }

    struct fi_msg_rma {
        msg_iov: *const iovec,
        desc: *mut *mut c_void,
        iov_count: size_t,
        addr: u64,
        rma_iov: *const fi_rma_iov,
        rma_iov_count: size_t,
        context: *mut c_void,
        data: u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;
    use std::process::Command;

    /// A C program that prints what our declarations say, compiled with the headers that are installed.
    #[test]
    fn declarations_are_those_of_the_headers() {
        let mut text = String::from("#include <stddef.h>\n#include <stdio.h>\n");
        for header in ["fabric", "fi_domain", "fi_endpoint", "fi_eq", "fi_cm", "fi_rma", "fi_atomic", "fi_errno"] {
            writeln!(text, "#include <rdma/{header}.h>").unwrap();
        }
        text.push_str("int main(void) {\n");
        let (layouts, values) = (layouts(), values());
        for (name, field, _) in &layouts {
            let field = field.trim_start_matches("r#");
            writeln!(text, "printf(\"%zu\\n\", offsetof(struct {name}, {field}));").unwrap();
        }
        for (name, _) in &values {
            writeln!(text, "printf(\"%lld\\n\", (long long) {name});").unwrap();
        }
        text.push_str("}\n");
        let dir = std::env::temp_dir().join(format!("partage-headers-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (source, program) = (dir.join("probe.c"), dir.join("probe"));
        std::fs::write(&source, text).unwrap();
        let compiled = Command::new("cc").arg("-o").args([&program, &source]).output();
        let printed = Command::new(&program).output();
        std::fs::remove_dir_all(&dir).unwrap();
        match compiled {
            Err(why) => return println!("SKIPPED: libfabric's headers are not compared: cc: {why}"),
            Ok(run) if !run.status.success() => {
                let errors = String::from_utf8_lossy(&run.stderr).into_owned();
                if errors.contains("rdma/fabric.h: No such file") {
                    return println!("SKIPPED: libfabric's headers are not compared: install libfabric-dev (Debian)");
                }
                panic!("{errors}");
            }
            Ok(_) => {}
        }
        let printed = String::from_utf8(printed.unwrap().stdout).unwrap();
        let mut printed = printed.lines().map(|line| line.parse::<i64>().unwrap());
        for (name, field, offset) in layouts {
            assert_eq!(printed.next(), Some(offset as i64), "{name}.{field}");
        }
        for (name, value) in values {
            assert_eq!(printed.next(), Some(value), "{name}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let why = Library::open(OsStr::new("/nowhere/libfabric.so.1")).unwrap_err();
        assert!(why.starts_with("libfabric is not there (/nowhere/libfabric.so.1: "), "{why}");
        assert!(why.contains("install libfabric1 (Debian)") && !why.contains('\n'), "{why}");
        let why = Library::open(OsStr::new("libc.so.6")).unwrap_err();
        assert!(why.starts_with("libfabric is not there (libc.so.6 has no fi_getinfo): "), "{why}");
        assert_eq!(text_of(API), "1.17");
    }
}

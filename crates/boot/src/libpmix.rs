//! What we call of libpmix, the client library of PMIx launchers.
//!
//! Names and layouts are those of its headers, which are the same from 4.0 to 6.1; other versions are refused. A test
//! compares every offset and constant with the headers where they are installed. The library is opened when a launcher
//! asks for it, so nothing else needs it. It stays open: it has a thread.
//!
//! Guaranteed: what is safe to call here is safe; a failure is a one-line error that says which call failed and what the
//! library calls it. Not contained: what the calls are for (`pmix`).
#![allow(non_camel_case_types)]

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, OnceLock, PoisonError};

use libc::{c_char, c_int, c_void, size_t};

use crate::Error;

/// The versions whose layouts these are.
const MAJORS: std::ops::RangeInclusive<u32> = 4..=6;

/// Declares a structure of C, and what a test needs to compare it with the headers.
macro_rules! structures {
    ($($(#[$meta:meta])* struct $name:ident { $($field:ident: $type:ty,)* })*) => {
        $($(#[$meta])* #[repr(C)] #[derive(Clone, Copy)] struct $name { $($field: $type,)* })*
        #[cfg(test)]
        fn layouts() -> Vec<(&'static str, &'static str, usize)> {
            vec![$((stringify!($name), "", size_of::<$name>()),
                $((stringify!($name), stringify!($field), std::mem::offset_of!($name, $field)),)*)*]
        }
    };
}

macro_rules! constants {
    ($($name:ident: $type:ty = $value:expr;)*) => {
        $(const $name: $type = $value;)*
        #[cfg(test)]
        fn values() -> Vec<(&'static str, i64)> {
            vec![$((stringify!($name), $name as i64),)*]
        }
    };
}

constants! {
    PMIX_MAX_NSLEN: usize = 255;
    PMIX_MAX_KEYLEN: usize = 511;
    PMIX_SUCCESS: c_int = 0;
    PMIX_ERR_LOST_CONNECTION: c_int = -61;
    PMIX_EVENT_ACTION_COMPLETE: c_int = -334;
    PMIX_BOOL: u16 = 1;
    PMIX_UINT32: u16 = 14;
    PMIX_BYTE_OBJECT: u16 = 27;
    PMIX_GLOBAL: u8 = 3;
    PMIX_RANK_WILDCARD: u32 = u32::MAX - 1;
}

/// The values of these are compared by the same test.
const PMIX_COLLECT_DATA: &CStr = c"pmix.collect";
const PMIX_JOB_SIZE: &CStr = c"pmix.job.size";

structures! {
    struct pmix_proc_t {
        nspace: [c_char; PMIX_MAX_NSLEN + 1],
        rank: u32,
    }
    struct pmix_byte_object_t {
        bytes: *mut c_char,
        size: size_t,
    }
    struct pmix_value_t {
        r#type: u16,
        data: Data,
    }
    struct pmix_info_t {
        key: [c_char; PMIX_MAX_KEYLEN + 1],
        flags: u32,
        value: pmix_value_t,
    }
}

/// What a value is, by its type; as large as the largest that the library has.
#[repr(C)]
#[derive(Clone, Copy)]
union Data {
    flag: bool,
    uint32: u32,
    bo: pmix_byte_object_t,
    room: [u64; 3],
}

type EventDone = Option<unsafe extern "C" fn(c_int, *mut pmix_info_t, size_t, *const c_void, *mut c_void, *mut c_void)>;
type EventHandler = unsafe extern "C" fn(
    size_t,
    c_int,
    *const pmix_proc_t,
    *mut pmix_info_t,
    size_t,
    *mut pmix_info_t,
    size_t,
    EventDone,
    *mut c_void,
);

/// Declares the functions that we call, and how all of them are found.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) -> $result:ty;)*) => {
        #[allow(non_snake_case)]
        struct Functions { $($name: unsafe extern "C" fn($($argument),*) -> $result,)* }

        impl Functions {
            fn find(symbol: impl Fn(&CStr) -> Result<*mut c_void, Error>) -> Result<Functions, Error> {
                Ok(Functions { $($name: {
                    let name = CString::new(stringify!($name)).map_err(|_| Error::new("a zero byte in a name"))?;
                    let found = symbol(&name)?;
                    // SAFETY: not null, and a function that the header declares with this type; the caller has
                    // found out that the library is of a version with that header.
                    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> $result>(found) }
                },)* })
            }
        }
    };
}

functions! {
    PMIx_Init: fn(*mut pmix_proc_t, *mut pmix_info_t, size_t) -> c_int;
    PMIx_Finalize: fn(*const pmix_info_t, size_t) -> c_int;
    PMIx_Abort: fn(c_int, *const c_char, *mut pmix_proc_t, size_t) -> c_int;
    PMIx_Put: fn(u8, *const c_char, *mut pmix_value_t) -> c_int;
    PMIx_Commit: fn() -> c_int;
    PMIx_Fence: fn(*const pmix_proc_t, size_t, *const pmix_info_t, size_t) -> c_int;
    PMIx_Get: fn(*const pmix_proc_t, *const c_char, *const pmix_info_t, size_t, *mut *mut pmix_value_t) -> c_int;
    PMIx_Error_string: fn(c_int) -> *const c_char;
    PMIx_Register_event_handler: fn(*mut c_int, size_t, *mut pmix_info_t, size_t, EventHandler, *const c_void, *mut c_void) -> c_int;
}

/// The library, and that it was opened.
pub(crate) struct Library {
    functions: Functions,
    version: String,
}

/// A process, as PMIx names it.
#[derive(Clone, Copy)]
pub(crate) struct Process(pmix_proc_t);

impl Process {
    /// Another one of the same job.
    pub(crate) fn peer(&self, rank: u32) -> Process {
        Process(pmix_proc_t { rank, ..self.0 })
    }

    pub(crate) fn rank(&self) -> u32 {
        self.0.rank
    }
}

/// Opened once: `libpmix.so.2`, or the file that is `named`.
pub(crate) fn library(named: Option<&OsStr>) -> Result<&'static Library, Error> {
    static LIBRARY: OnceLock<Result<Library, Error>> = OnceLock::new();
    let opened = LIBRARY.get_or_init(|| Library::open(named.unwrap_or(OsStr::new("libpmix.so.2"))));
    opened.as_ref().map_err(|e| Error::new(e.to_string()))
}

impl Library {
    fn open(file: &OsStr) -> Result<Library, Error> {
        let missing = |why: &str| {
            Error::new(format!(
                "launchers that speak PMIx need libpmix, which is not there ({why}): install libpmix2 (Debian) or pmix \
                 (others), 4 to 6, or name its file in PARTAGE_LIBPMIX"
            ))
        };
        let name = CString::new(file.as_bytes()).map_err(|_| missing("PARTAGE_LIBPMIX has a zero byte"))?;
        // The library's own plugins find its functions among those of the whole process.
        // SAFETY: a C string; the library's constructors are as trustworthy as the user's choice of it.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() {
            return Err(missing(&last_dl_error()));
        }
        let symbol = |name: &CStr| {
            // SAFETY: a handle that `dlopen` has just given and that nobody closes, and a C string.
            let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
            let why = || missing(&format!("{} has no {}", file.to_string_lossy(), name.to_string_lossy()));
            (!found.is_null()).then_some(found).ok_or_else(why)
        };
        let version = symbol(c"PMIx_Get_version")?;
        // SAFETY: declared as a function without arguments that gives a C string, in every version; it needs no `Init`.
        let version = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const c_char>(version)() };
        // SAFETY: a constant of the library, or null.
        let version = number_in(&unsafe { text(version) });
        let major = version.split('.').next().and_then(|major| major.parse().ok());
        if !major.is_some_and(|major| MAJORS.contains(&major)) {
            let (oldest, newest) = (MAJORS.start(), MAJORS.end());
            return Err(Error::new(format!(
                "launchers that speak PMIx need libpmix {oldest} to {newest}, here it is {version}; install another, or name \
                 its file in PARTAGE_LIBPMIX"
            )));
        }
        Ok(Library { functions: Functions::find(symbol)?, version })
    }

    /// Such as `4.2.2`.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Connects to the server that started this process, and says who it is.
    pub(crate) fn init(&self) -> Result<Process, Error> {
        let mut me = pmix_proc_t { nspace: [0; PMIX_MAX_NSLEN + 1], rank: 0 };
        // SAFETY: `me` may be written to, and there are no directives.
        let status = unsafe { (self.functions.PMIx_Init)(&mut me, std::ptr::null_mut(), 0) };
        self.check("PMIx_Init", status)?;
        Ok(Process(me))
    }

    /// How many processes the job of this one has.
    pub(crate) fn job_size(&self, me: &Process) -> Result<u32, Error> {
        self.get_value(&me.peer(PMIX_RANK_WILDCARD), PMIX_JOB_SIZE, |value| match value.r#type {
            // SAFETY: the field that this type says.
            PMIX_UINT32 => Some(unsafe { value.data.uint32 }),
            _ => None,
        })
    }

    /// Of this process, for all; after [`Library::commit`].
    pub(crate) fn put(&self, key: &CStr, bytes: &[u8]) -> Result<(), Error> {
        let bo = pmix_byte_object_t { bytes: bytes.as_ptr().cast_mut().cast(), size: bytes.len() };
        let mut value = pmix_value_t { r#type: PMIX_BYTE_OBJECT, data: Data { room: [0; 3] } };
        value.data.bo = bo;
        // SAFETY: a C string shorter than a key may be, as all of ours are, and a value of the type that it says, of which
        // the library makes a copy before it returns; it only reads the bytes.
        let status = unsafe { (self.functions.PMIx_Put)(PMIX_GLOBAL, key.as_ptr(), &mut value) };
        self.check("PMIx_Put", status)
    }

    pub(crate) fn commit(&self) -> Result<(), Error> {
        // SAFETY: no arguments; any thread may call it between `Init` and `Finalize`, and before an error else.
        let status = unsafe { (self.functions.PMIx_Commit)() };
        self.check("PMIx_Commit", status)
    }

    /// Returns when all processes of the job have called it; `collect`: with what they have committed.
    pub(crate) fn fence(&self, collect: bool) -> Result<(), Error> {
        let mut info = pmix_info_t {
            key: [0; PMIX_MAX_KEYLEN + 1],
            flags: 0,
            value: pmix_value_t { r#type: PMIX_BOOL, data: Data { room: [0; 3] } },
        };
        for (to, from) in info.key.iter_mut().zip(PMIX_COLLECT_DATA.to_bytes()) {
            *to = *from as c_char;
        }
        info.value.data.flag = collect;
        // SAFETY: no list of processes means all of the job, and there is one directive, which is only read.
        let status = unsafe { (self.functions.PMIx_Fence)(std::ptr::null(), 0, &info, 1) };
        self.check("PMIx_Fence", status)
    }

    /// What a process has put.
    pub(crate) fn get(&self, of: &Process, key: &CStr) -> Result<Vec<u8>, Error> {
        self.get_value(of, key, |value| {
            if value.r#type != PMIX_BYTE_OBJECT {
                return None;
            }
            // SAFETY: the field that this type says.
            let bo = unsafe { value.data.bo };
            if bo.bytes.is_null() {
                return Some(vec![]);
            }
            // SAFETY: the library gives so many bytes, which nobody else has.
            let bytes = unsafe { std::slice::from_raw_parts(bo.bytes.cast::<u8>(), bo.size) }.to_vec();
            // SAFETY: as the caller has to, once; they come from `malloc`.
            unsafe { libc::free(bo.bytes.cast()) };
            Some(bytes)
        })
    }

    fn get_value<T>(
        &self,
        of: &Process,
        key: &CStr,
        read: impl FnOnce(&pmix_value_t) -> Option<T>,
    ) -> Result<T, Error> {
        let mut value = std::ptr::null_mut();
        // SAFETY: a process and a C string that are only read, no directives, and a pointer that may be written to.
        let status = unsafe { (self.functions.PMIx_Get)(&of.0, key.as_ptr(), std::ptr::null(), 0, &mut value) };
        let what = || format!("PMIx_Get of {} of process {}", key.to_string_lossy(), of.0.rank as i32);
        self.check(&what(), status)?;
        if value.is_null() {
            return Err(Error::new(format!("{} gave nothing", what())));
        }
        // SAFETY: after success the library has given a value that is the caller's.
        let found = read(unsafe { &*value });
        // SAFETY: it is ours to free, and was made by `malloc`; `read` has freed what it points to.
        unsafe { libc::free(value.cast()) };
        found.ok_or_else(|| Error::new(format!("{} gave a value of another type", what())))
    }

    /// Ends the job.
    pub(crate) fn abort(&self, code: i32) {
        // SAFETY: no message, and no list of processes, which means all of the job.
        let _ = unsafe { (self.functions.PMIx_Abort)(code, c"".as_ptr(), std::ptr::null_mut(), 0) };
    }

    /// Leaves the job in good order.
    pub(crate) fn finalize(&self) {
        // SAFETY: no directives; nothing of the library is used by us afterwards.
        let _ = unsafe { (self.functions.PMIx_Finalize)(std::ptr::null(), 0) };
    }

    /// Closes `line` when the connection to the server is lost.
    pub(crate) fn close_when_lost(&self, line: OwnedFd) -> Result<(), Error> {
        *LINE.lock().unwrap_or_else(PoisonError::into_inner) = Some(line);
        let mut codes = [PMIX_ERR_LOST_CONNECTION];
        // SAFETY: one code, no directives, a function that may be called from any thread at any time, and no function for
        // what has come of it, which makes the call wait for that; its result is then a number of the handler, or an
        // error, which is negative.
        let status = unsafe {
            let register = self.functions.PMIx_Register_event_handler;
            register(codes.as_mut_ptr(), 1, std::ptr::null_mut(), 0, lost, std::ptr::null(), std::ptr::null_mut())
        };
        if status < 0 { self.check("PMIx_Register_event_handler", status) } else { Ok(()) }
    }

    fn check(&self, call: &str, status: c_int) -> Result<(), Error> {
        if status == PMIX_SUCCESS {
            return Ok(());
        }
        // SAFETY: any number will do; it gives a constant C string.
        let why = unsafe { text((self.functions.PMIx_Error_string)(status)) };
        Err(Error::new(format!("{call}: {why} (libpmix {})", self.version)))
    }
}

/// What hangs up when the server is lost.
static LINE: Mutex<Option<OwnedFd>> = Mutex::new(None);

unsafe extern "C" fn lost(
    _handler: size_t,
    _status: c_int,
    _source: *const pmix_proc_t,
    _info: *mut pmix_info_t,
    _infos: size_t,
    _results: *mut pmix_info_t,
    _of_results: size_t,
    done: EventDone,
    data: *mut c_void,
) {
    drop(LINE.lock().unwrap_or_else(PoisonError::into_inner).take());
    if let Some(done) = done {
        // SAFETY: the library's own function, called once, with what it gave for that and no results.
        unsafe {
            done(PMIX_EVENT_ACTION_COMPLETE, std::ptr::null_mut(), 0, std::ptr::null(), std::ptr::null_mut(), data);
        }
    }
}

/// # Safety
///
/// Null, or a C string that lives as long as this call.
unsafe fn text(text: *const c_char) -> String {
    match text.is_null() {
        true => "no reason given".into(),
        // SAFETY: not null, so as the caller says.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    }
}

fn last_dl_error() -> String {
    // SAFETY: gives a C string of the calling thread that lives until its next call, or null.
    unsafe { text(libc::dlerror()) }
}

/// The first word that begins with a digit: `4.2.2` of `OpenPMIx 4.2.2 (PMIx Standard: 4.1, …)`.
fn number_in(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c == ',');
    let mut numbers = words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    numbers.next().unwrap_or("of an unknown version").trim_end_matches([')', ';']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Compiles a C program that compares them with the headers.
    #[test]
    fn layouts_are_those_of_the_headers() {
        let folders = [
            "/usr/include",
            "/usr/include/pmix",
            "/usr/lib/x86_64-linux-gnu/pmix2/include",
            "/usr/lib/aarch64-linux-gnu/pmix2/include",
            "/usr/local/include",
        ];
        let Some(folder) = folders.iter().find(|folder| std::path::Path::new(folder).join("pmix.h").is_file()) else {
            println!("SKIPPED: the headers of PMIx are not installed (Debian package libpmix-dev)");
            return;
        };
        let mut program = String::from("#include <stddef.h>\n#include <string.h>\n#include <pmix.h>\n");
        for (name, field, number) in layouts() {
            let (what, field) = match field {
                "" => (format!("sizeof({name})"), name),
                field => (format!("offsetof({name}, {})", field.trim_start_matches("r#")), field),
            };
            program += &format!("_Static_assert({what} == {number}, \"{name} {field}\");\n");
        }
        for (name, number) in values() {
            program += &format!("_Static_assert({name} == {number}, \"{name}\");\n");
        }
        program += "int main(void) { return strcmp(PMIX_COLLECT_DATA, \"pmix.collect\") || strcmp(PMIX_JOB_SIZE, \"pmix.job.size\"); }\n";
        let directory = std::env::temp_dir().join(format!("partage-libpmix-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let (source, binary) = (directory.join("layout.c"), directory.join("layout"));
        std::fs::write(&source, &program).unwrap();
        let compiled = Command::new("cc").arg("-I").arg(folder).arg(&source).arg("-o").arg(&binary).output();
        let ran = compiled.as_ref().is_ok_and(|output| output.status.success()).then(|| Command::new(&binary).status());
        std::fs::remove_dir_all(&directory).unwrap();
        match (compiled, ran) {
            (Err(e), _) => println!("SKIPPED: there is no C compiler: {e}"),
            (Ok(output), None) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
            (_, Some(status)) => assert!(status.unwrap().success(), "names of attributes differ"),
        }
    }

    #[test]
    fn versions_are_found() {
        assert_eq!(number_in("OpenPMIx 4.2.2 (PMIx Standard: 4.1, Stable ABI: 0.0)"), "4.2.2");
        assert_eq!(number_in("OpenPMIx 5.0.3, repo rev: v5.0.3 (x)"), "5.0.3");
        assert_eq!(number_in("PMIx 3.2.3rc1"), "3.2.3rc1");
        assert_eq!(number_in("strange"), "of an unknown version");
    }

    #[test]
    fn what_is_not_there_names_the_package() {
        for (file, why) in [("/no/such/libpmix.so", "No such file"), ("libc.so.6", "has no PMIx_Get_version")] {
            let Err(e) = Library::open(OsStr::new(file)) else { panic!("{file} was opened") };
            let line = e.to_string();
            assert!(line.contains(why) && line.contains("install libpmix2 (Debian)"), "{line}");
        }
    }
}

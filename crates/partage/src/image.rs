//! Which program this is: the linker's build-id, or a hash of the executable. Ranks of one job must run the same one.
//! And where it lies in memory: functions travel between processes as their places in it.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// The program's own image in this process: without shared libraries.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    base: usize,
    /// Its executable parts.
    text: Vec<Range<usize>>,
}

impl Image {
    /// Of this process.
    pub fn here() -> Image {
        /// # Safety
        /// Called by `dl_iterate_phdr` with an `Image` as its data.
        unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, _: usize, image: *mut libc::c_void) -> libc::c_int {
            // SAFETY: the loader gives a description that holds during this call, and `image` is what was passed below.
            let (info, image, headers) = unsafe {
                let info = &*info;
                let headers = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize);
                (info, &mut *image.cast::<Image>(), headers)
            };
            image.base = info.dlpi_addr as usize;
            for h in headers.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_X != 0) {
                let start = image.base + h.p_vaddr as usize;
                image.text.push(start..start + h.p_memsz as usize);
            }
            // The program itself comes first.
            1
        }
        let mut image = Image { base: 0, text: vec![] };
        // SAFETY: `first` does not keep what it is given, and `image` lives until the call returns.
        unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut image).cast()) };
        image
    }

    /// The place of a function, if it is one of the program's own.
    #[inline(always)]
    pub fn place(&self, address: usize) -> Option<u32> {
        if self.is_text(address) { u32::try_from(address - self.base).ok() } else { None }
    }

    /// The address of a function by its place, if there can be one.
    #[inline(always)]
    pub fn address(&self, place: u32) -> Option<usize> {
        Some(self.base + place as usize).filter(|&a| self.is_text(a))
    }

    #[inline(always)]
    fn is_text(&self, address: usize) -> bool {
        self.text.iter().any(|part| part.contains(&address))
    }

    /// Where anything lies relative to the image.
    pub fn offset(&self, address: usize) -> u64 {
        address.wrapping_sub(self.base) as u64
    }
}

/// Equal for processes that run the same image.
pub(crate) fn identity() -> [u8; 32] {
    let mut id = [0; 32];
    let Ok(file) = File::open("/proc/self/exe") else { return id };
    match build_id(&file) {
        Some(found) => {
            let n = found.len().min(31);
            id[..n].copy_from_slice(&found[..n]);
            id[31] = 1;
        }
        None => {
            let hash = hash(&file);
            id[..8].copy_from_slice(&hash.to_le_bytes());
            id[31] = 2;
        }
    }
    id
}

/// The GNU build-id note of a 64-bit little-endian ELF file.
fn build_id(file: &File) -> Option<Vec<u8>> {
    let read = |at: u64, len: usize| -> Option<Vec<u8>> {
        let mut buf = vec![0; len];
        file.read_exact_at(&mut buf, at).ok()?;
        Some(buf)
    };
    let u16_at = |b: &[u8], i: usize| Some(u64::from(u16::from_le_bytes(b.get(i..i + 2)?.try_into().ok()?)));
    let u32_at = |b: &[u8], i: usize| Some(u64::from(u32::from_le_bytes(b.get(i..i + 4)?.try_into().ok()?)));
    let u64_at = |b: &[u8], i: usize| Some(u64::from_le_bytes(b.get(i..i + 8)?.try_into().ok()?));
    let head = read(0, 64)?;
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, entry, count) = (u64_at(&head, 32)?, u16_at(&head, 54)?, u16_at(&head, 56)?);
    if !(56..=256).contains(&entry) || count > 256 {
        return None;
    }
    let headers = read(table, (entry * count) as usize)?;
    const PT_NOTE: u64 = 4;
    for header in headers.chunks_exact(entry as usize).filter(|h| u32_at(h, 0) == Some(PT_NOTE)) {
        let notes = read(u64_at(header, 8)?, usize::try_from(u64_at(header, 32)?).ok().filter(|&n| n <= 65536)?)?;
        let mut at = 0;
        while let (Some(name), Some(desc), Some(kind)) =
            (u32_at(&notes, at), u32_at(&notes, at + 4), u32_at(&notes, at + 8))
        {
            let (name_at, name, desc) = (at + 12, name as usize, desc as usize);
            let desc_at = name_at + name.next_multiple_of(4);
            if kind == 3 && notes.get(name_at..name_at + name) == Some(b"GNU\0") {
                return notes.get(desc_at..desc_at + desc).map(<[u8]>::to_vec);
            }
            at = desc_at + desc.next_multiple_of(4);
        }
    }
    None
}

fn hash(file: &File) -> u64 {
    use std::hash::Hasher;
    // Fixed keys: the same in every process.
    #[allow(deprecated)]
    let mut hasher = std::hash::SipHasher::new();
    let mut buf = vec![0; 1 << 16];
    let mut at = 0;
    while let Ok(n @ 1..) = file.read_at(&mut buf, at) {
        hasher.write(&buf[..n]);
        at += n as u64;
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_is_stable_and_not_empty() {
        assert_eq!(identity(), identity());
        assert_ne!(identity()[31], 0);
        let file = File::open("/proc/self/exe").unwrap();
        assert_ne!(hash(&file), 0);
    }

    #[test]
    fn functions_have_places_and_other_things_have_none() {
        let image = Image::here();
        let place = image.place(identity as *const () as usize).unwrap();
        assert_eq!(image.address(place), Some(identity as *const () as usize));
        assert_eq!(image.place(libc::getpid as *const () as usize), None);
        assert_eq!(image.place(&raw const image as usize), None);
        assert_eq!((image.place(0), image.address(0), image.address(u32::MAX)), (None, None, None));
    }

    #[test]
    fn what_is_no_elf_file_has_no_build_id() {
        assert_eq!(build_id(&File::open("/proc/self/maps").unwrap()), None);
        assert_eq!(build_id(&File::open("/dev/null").unwrap()), None);
    }
}

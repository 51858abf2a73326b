//! Compiled modules on disk, between processes.
//!
//! A file is a head of text lines, which names everything that the module depends on, and then the module's bytes. It
//! counts only where the head is the expected one and length and checksum of the bytes are right; what does not count
//! is compiled anew and written over. A file is written under a name of its own and renamed, so that nobody reads half
//! of one.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use super::driver::DeviceInfo;

/// The first line of a file. Another number is another format.
const MAGIC: &str = "gradwire-cubin 1";

/// One family's place in the cache, for one target, device and driver.
pub(super) struct Entry {
    path: PathBuf,
    /// What a file begins with that is of use.
    head: String,
}

impl Entry {
    pub(super) fn new(folder: &Path, family: &str, target: u32, ptx: &str, info: &DeviceInfo) -> Entry {
        let (major, minor) = info.compute_capability;
        let (driver_major, driver_minor) = info.driver_version;
        let head = format!(
            "{MAGIC}\ngradwire {}\nfamily {family}\nptx sm_{target} {}\ndevice {major}.{minor}\ndriver {driver_major}.{driver_minor}\n",
            env!("CARGO_PKG_VERSION"),
            digest(ptx.as_bytes())
        );
        // Processes with other drivers or devices may share the folder, so all of the head is in the name.
        let name = format!("gradwire-{family}-sm_{target}-{:032x}.cubin", fnv(head.as_bytes()));
        Entry { path: folder.join(name), head }
    }

    /// The module's bytes; none if there is no such file, or none that counts.
    pub(super) fn read(&self) -> Option<Vec<u8>> {
        // Reading anything but a file could wait for ever.
        if !fs::metadata(&self.path).ok()?.is_file() {
            return None;
        }
        let file = fs::read(&self.path).ok()?;
        let rest = file.strip_prefix(self.head.as_bytes())?;
        let end = rest.iter().take(128).position(|byte| *byte == b'\n')?;
        let (line, image) = (&rest[..end], &rest[end + 1..]);
        (line == format!("module {}", digest(image)).as_bytes()).then(|| image.to_vec())
    }

    /// Writes a file that [`Entry::read`] finds. The error is in words: what was tried, and what the system said.
    pub(super) fn write(&self, image: &[u8]) -> Result<(), String> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let said = |what: &str, e: std::io::Error| format!("{} could not be {what}: {e}", self.path.display());
        fs::create_dir_all(folder).map_err(|e| format!("the folder {} could not be made: {e}", folder.display()))?;
        // A name that no other thread or process writes to: machines and containers that share the folder may share
        // numbers of processes, so the time is in it too, and a file that is there already is not opened.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let part = self.path.with_extension(format!("{}-{number}-{now:x}.part", std::process::id()));
        let written = fs::File::create_new(&part).and_then(|mut file| {
            file.write_all(self.head.as_bytes())?;
            file.write_all(format!("module {}\n", digest(image)).as_bytes())?;
            file.write_all(image)
        });
        written
            .map_err(|e| said("written", e))
            .and_then(|()| fs::rename(&part, &self.path).map_err(|e| said("put in its place", e)))
            .inspect_err(|_| {
                // It may not be there, and that is what is wanted.
                let _ = fs::remove_file(&part);
            })
    }
}

/// Length and two checksums of some bytes. They are for bytes that were damaged, not for bytes that somebody forged.
fn digest(bytes: &[u8]) -> String {
    format!("{} {:032x} {:08x}", bytes.len(), fnv(bytes), crc32fast::hash(bytes))
}

/// FNV-1a of 128 bits (Fowler, Noll and Vo).
fn fnv(bytes: &[u8]) -> u128 {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013B;
    const BASIS: u128 = 0x6C62_272E_07BB_0142_62B8_2175_6295_C58D;
    bytes.iter().fold(BASIS, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> DeviceInfo {
        DeviceInfo {
            name: "a device".to_owned(),
            compute_capability: (9, 0),
            driver_version: (12, 4),
            total_memory: 0,
            multiprocessors: 1,
        }
    }

    /// A folder of the test's own, which is removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            Folder(std::env::temp_dir().join(format!("gradwire-cache-{name}-{}", std::process::id())))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_hash_is_the_published_one() {
        // Test vectors of the authors' page: the empty text, and "a".
        assert_eq!(fnv(b""), 0x6c62272e07bb014262b821756295c58d);
        assert_eq!(fnv(b"a"), 0xd228cb696f1a8caf78912b704e4a8964);
    }

    #[test]
    fn what_was_written_is_read_and_nothing_else() {
        let folder = Folder::new("read");
        let entry = Entry::new(&folder.0, "qsgd", 90, "text", &info());
        assert_eq!(entry.read(), None, "there is no folder");
        entry.write(b"a module").expect("the folder is made");
        assert_eq!(entry.read().as_deref(), Some(&b"a module"[..]));
        assert_eq!(fs::read_dir(&folder.0).expect("made").count(), 1, "no half of a file is left");
        let others = [
            Entry::new(&folder.0, "topk", 90, "text", &info()),
            Entry::new(&folder.0, "qsgd", 80, "text", &info()),
            Entry::new(&folder.0, "qsgd", 90, "texu", &info()),
            Entry::new(&folder.0, "qsgd", 90, "text", &DeviceInfo { compute_capability: (9, 1), ..info() }),
            Entry::new(&folder.0, "qsgd", 90, "text", &DeviceInfo { driver_version: (12, 5), ..info() }),
        ];
        for other in others {
            assert_ne!(other.path, entry.path);
            assert_eq!(other.read(), None);
            // Nor where its name is taken by this one's file.
            fs::copy(&entry.path, &other.path).expect("the folder can be written");
            assert_eq!(other.read(), None);
        }
    }

    #[test]
    fn damage_is_found_wherever_it_is() {
        let folder = Folder::new("damage");
        let entry = Entry::new(&folder.0, "qsgd", 90, "text", &info());
        entry.write(&[7; 100]).expect("the folder is made");
        let good = fs::read(&entry.path).expect("it is there");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            fs::write(&entry.path, &bad).expect("the folder can be written");
            assert_eq!(entry.read(), None, "byte {at}");
            fs::write(&entry.path, &good[..at]).expect("the folder can be written");
            assert_eq!(entry.read(), None, "{at} bytes");
        }
        fs::write(&entry.path, [&good[..], b"x"].concat()).expect("the folder can be written");
        assert_eq!(entry.read(), None, "a byte too many");
        fs::write(&entry.path, &good).expect("the folder can be written");
        assert!(entry.read().is_some());
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_said() {
        let folder = Folder::new("file");
        fs::write(&folder.0, "a file").expect("the folder for temporary files can be written");
        let entry = Entry::new(&folder.0.join("below"), "qsgd", 90, "text", &info());
        let error = entry.write(b"a module").expect_err("a file is no folder");
        assert!(error.contains("below") && error.contains("could not be made"), "{error}");
        assert_eq!(entry.read(), None);
        fs::remove_file(&folder.0).expect("it is there");
    }
}

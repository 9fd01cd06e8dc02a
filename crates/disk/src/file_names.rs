//! Numbers of files in a request log.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Number for requests without a file, such as the flush of a directory.
pub const NO_FILE: u32 = 0;

#[derive(Debug)]
struct Named {
    path: String,
    /// Number of open handles.
    open: u64,
}

#[derive(Debug)]
struct Names {
    numbers: HashMap<String, u32>,
    named: HashMap<u32, Named>,
    next: u32,
    logging: bool,
}

impl Names {
    fn forget_closed(&mut self) {
        self.named.retain(|_, named| named.open > 0);
        let named = &self.named;
        self.numbers.retain(|_, number| named.contains_key(number));
        self.named.shrink_to(2 * self.named.len());
        self.numbers.shrink_to(2 * self.numbers.len());
    }
}

/// Open files of a disk. While a log is written, closed files stay too, because its records refer to them.
#[derive(Debug)]
pub struct FileNames(Mutex<Names>);

impl Default for FileNames {
    fn default() -> Self {
        FileNames(Mutex::new(Names {
            numbers: HashMap::new(),
            named: HashMap::new(),
            next: NO_FILE + 1,
            logging: false,
        }))
    }
}

impl FileNames {
    fn lock(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of the file that is opened at `path` (relative to the mount).
    pub fn opened(&self, path: String) -> u32 {
        let mut names = self.lock();
        let next = names.next;
        let number = *names.numbers.entry(path.clone()).or_insert(next);
        if number == next {
            names.next = next.checked_add(1).unwrap_or(NO_FILE + 1);
        }
        let new = || Named { path, open: 0 };
        names.named.entry(number).or_insert_with(new).open += 1;
        number
    }

    /// Close a handle of the file.
    pub fn closed(&self, number: u32) {
        let mut names = self.lock();
        let keep = names.logging;
        let Some(named) = names.named.get_mut(&number) else {
            return;
        };
        named.open = named.open.saturating_sub(1);
        if named.open == 0 && !keep {
            if let Some(named) = names.named.remove(&number) {
                names.numbers.remove(&named.path);
            }
        }
    }

    /// Start or (not `on`) end a log.
    pub fn log(&self, on: bool) {
        let mut names = self.lock();
        names.logging = on;
        names.forget_closed();
    }

    /// Path of the file when it was opened.
    pub fn path_of(&self, number: u32) -> String {
        let names = self.lock();
        let named = names.named.get(&number);
        named.map_or_else(String::new, |named| named.path.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_last_while_the_file_is_open_or_logged() {
        let names = FileNames::default();
        let open = |path: &str| names.opened(path.to_owned());
        let (one, other) = (open("a"), open("b"));
        assert_eq!(open("a"), one);
        names.closed(one);
        assert_eq!(names.path_of(one), "a");
        names.closed(one);
        assert_eq!(names.path_of(one), "");
        names.log(true);
        names.closed(other);
        assert_eq!((names.path_of(other), open("b")), ("b".to_owned(), other));
        names.closed(other);
        names.log(false);
        assert_eq!(names.path_of(other), "");
        assert!(names.lock().numbers.is_empty() && names.lock().named.is_empty());
    }
}

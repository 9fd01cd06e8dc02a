//! Extended attributes of a file, stored with its map: xattr(7).

use std::ffi::{CStr, CString};
use std::io;

fn checked(length: isize) -> io::Result<usize> {
    usize::try_from(length).map_err(|_| io::Error::last_os_error())
}

/// Value of an attribute.
pub(crate) fn get(path: &CStr, name: &CStr) -> io::Result<Vec<u8>> {
    // SAFETY (all): terminated strings, and buffers of the stated sizes.
    let read = |into: *mut u8, size: usize| {
        checked(unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), into.cast(), size) })
    };
    filled(read)
}

/// Names of all attributes, each with a null byte.
pub(crate) fn list(path: &CStr) -> io::Result<Vec<u8>> {
    let read = |into: *mut u8, size: usize| {
        checked(unsafe { libc::llistxattr(path.as_ptr(), into.cast(), size) })
    };
    filled(read)
}

fn filled(read: impl Fn(*mut u8, usize) -> io::Result<usize>) -> io::Result<Vec<u8>> {
    loop {
        let mut value = vec![0; read(std::ptr::null_mut(), 0)?];
        match read(value.as_mut_ptr(), value.len()) {
            Err(error) if error.raw_os_error() == Some(libc::ERANGE) => {} // the list has grown since its size was read
            length => {
                value.truncate(length?);
                return Ok(value);
            }
        }
    }
}

/// Sets an attribute.
pub(crate) fn set(path: &CStr, name: &CStr, value: &[u8], flags: i32) -> io::Result<()> {
    let (size, value) = (value.len(), value.as_ptr().cast());
    let result = unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), value, size, flags) };
    checked(result as isize).map(|_| ())
}

/// Removes an attribute.
pub(crate) fn remove(path: &CStr, name: &CStr) -> io::Result<()> {
    checked(unsafe { libc::lremovexattr(path.as_ptr(), name.as_ptr()) } as isize).map(|_| ())
}

/// Copy all attributes that may be copied. A file system without extended attributes counts as having none.
pub(crate) fn copy(from: &CStr, to: &CStr) -> io::Result<()> {
    let names = match list(from) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTSUP) => return Ok(()),
        names => names?,
    };
    for name in names
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
    {
        let name = CString::new(name).map_err(io::Error::other)?;
        match get(from, &name).and_then(|value| set(to, &name, &value, 0)) {
            // an attribute that belongs to the file system
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ENOTSUP | libc::EPERM | libc::ENODATA)
                ) => {}
            result => result?,
        }
    }
    Ok(())
}

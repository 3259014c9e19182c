package main

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// libraries are the folders of the packages that the guest needs, and single files.
var libraries = []string{"usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "etc/libibverbs.d", "usr/bin/rdma", "bin/rdma", "bin/busybox", "usr/bin/busybox"}

// build compiles the tests and writes the guest's file system: a cpio archive (newc) that
// the kernel unpacks.
func build(image string, p parts) error {
	f, err := os.Create(image)
	if err != nil {
		return err
	}
	defer f.Close()
	buffer := bufio.NewWriter(f)
	a := &archive{w: buffer, dirs: map[string]bool{}}
	for _, dir := range []string{"proc", "sys", "dev", "tmp"} {
		a.dir(dir)
	}
	a.add("init", 0o100755, []byte(initScript))
	list := ""
	for _, test := range tests {
		name := strings.ReplaceAll(strings.TrimPrefix(test.pkg, "./migrator/"), "/", "-")
		list += name + " " + test.run + "\n"
		bin := filepath.Join(cache, name+".test")
		cmd := exec.Command("go", "test", "-c", "-ldflags=-s -w", "-o", bin, test.pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go test -c %s: %w\n%s", test.pkg, err, out)
		}
		a.file("tests/"+name, bin)
		if err := a.needed(bin); err != nil {
			return err
		}
	}
	extent := "1"
	if os.Getenv("CASCADE_TEST_ALL") != "" {
		extent = "all"
	}
	a.add("extent", 0o100644, []byte(extent))
	a.add("tests.list", 0o100644, []byte(list))
	for _, of := range libraries {
		if err := a.tree(p.root, of); err != nil {
			return err
		}
	}
	for m := range modules {
		if from := filepath.Join(p.modules, m); exists(from) {
			a.file("modules/"+m, from)
		}
	}
	if !a.has["bin/busybox"] {
		a.file("bin/busybox", filepath.Join(p.root, "usr/bin/busybox"))
	}
	a.add("TRAILER!!!", 0, nil)
	if a.err != nil {
		return a.err
	}
	if err := buffer.Flush(); err != nil {
		return err
	}
	return f.Close()
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// archive is a cpio archive that is being written. It keeps the first error.
type archive struct {
	w    io.Writer
	n    int // entries
	dirs map[string]bool
	has  map[string]bool
	err  error
}

// needed adds the shared libraries that a program is linked with, from this machine.
func (a *archive) needed(bin string) error {
	out, err := exec.Command("ldd", bin).Output()
	if err != nil {
		return fmt.Errorf("ldd %s: %w", bin, err)
	}
	for line := range strings.Lines(string(out)) {
		for _, field := range strings.Fields(line) {
			if strings.HasPrefix(field, "/") {
				a.file(field[1:], field)
				break
			}
		}
	}
	return nil
}

// tree adds a file, or the files below a folder.
func (a *archive) tree(root, of string) error {
	base := filepath.Join(root, of)
	if !exists(base) {
		return nil
	}
	return filepath.WalkDir(base, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil || strings.HasSuffix(rel, ".a") || strings.Contains(rel, "pkgconfig") {
			return err
		}
		a.file(filepath.ToSlash(rel), name)
		return nil
	})
}

// file adds a file of this machine; it follows links.
func (a *archive) file(name, from string) {
	if a.has[name] {
		return
	}
	if target, err := os.Readlink(from); err == nil && !exists(from) {
		_ = target // a link into a package that is not installed
		return
	}
	b, err := os.ReadFile(from)
	if err != nil {
		a.fail(err)
		return
	}
	a.add(name, 0o100755, b)
}

func (a *archive) fail(err error) {
	if a.err == nil {
		a.err = err
	}
}

// dir adds a folder and its parents.
func (a *archive) dir(name string) {
	if name == "." || name == "/" || a.dirs[name] {
		return
	}
	a.dir(path.Dir(name))
	a.dirs[name] = true
	a.entry(name, 0o040755, nil)
}

func (a *archive) add(name string, mode uint32, b []byte) {
	if a.has == nil {
		a.has = map[string]bool{}
	}
	a.has[name] = true
	a.dir(path.Dir(name))
	a.entry(name, mode, b)
}

// entry writes one record: a header of hexadecimal numbers, the name, and the bytes, each
// padded to four.
func (a *archive) entry(name string, mode uint32, b []byte) {
	a.n++
	links := 1
	h := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", a.n, mode, 0, 0, links, 0, len(b), 0, 0, 0, 0, len(name)+1, 0) + name + "\x00"
	h += strings.Repeat("\x00", -len(h)&3)
	if _, err := io.WriteString(a.w, h); err != nil {
		a.fail(err)
	}
	if _, err := a.w.Write(append(b[:len(b):len(b)], make([]byte, -len(b)&3)...)); err != nil {
		a.fail(err)
	}
}

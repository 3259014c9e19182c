package main

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// packages are the Debian packages, besides the kernel.
var packages = []string{
	"busybox-static", "libibverbs1", "ibverbs-providers", "libibverbs-dev", "libnl-3-200", "libnl-route-3-200",
	"iproute2", "libmnl0", "libbsd0", "libmd0", "libcap2",
}

// modules are the kernel modules that the guest loads.
var modules = map[string]bool{
	"crc32_generic.ko": true, "udp_tunnel.ko": true, "ip6_udp_tunnel.ko": true, "ib_core.ko": true, "ib_uverbs.ko": true, "rdma_rxe.ko": true, "dummy.ko": true,
}

// parts are the paths of the downloaded files.
type parts struct{ kernel, modules, root string }

// fetch downloads and unpacks what is missing.
func fetch() (parts, error) {
	debs, err := filepath.Abs(filepath.Join(cache, "debs"))
	if err != nil {
		return parts{}, err
	}
	p := parts{kernel: filepath.Join(cache, "vmlinuz"), modules: filepath.Join(cache, "modules"), root: filepath.Join(cache, "root")}
	done := filepath.Join(cache, ".fetched")
	if _, err := os.Stat(done); err == nil {
		return p, nil
	}
	for _, dir := range []string{debs, p.modules, p.root} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return p, err
		}
	}
	kernel, err := kernelPackage()
	if err != nil {
		return p, err
	}
	fmt.Println("rdma-check: fetching", kernel, "and libibverbs into", cache)
	cmd := exec.Command("apt-get", append([]string{"download", "-q", kernel}, packages...)...)
	cmd.Dir = debs
	if out, err := cmd.CombinedOutput(); err != nil {
		return p, &missingError{"a package", fmt.Sprintf("run apt-get update, or see its output (%v):\n%s", err, out)}
	}
	for _, name := range packages {
		deb, err := only(debs, name+"_*.deb")
		if err != nil {
			return p, err
		}
		if out, err := exec.Command("dpkg-deb", "-x", deb, p.root).CombinedOutput(); err != nil {
			return p, fmt.Errorf("dpkg-deb -x %s: %w\n%s", deb, err, out)
		}
	}
	deb, err := only(debs, kernel+"_*.deb")
	if err != nil {
		return p, err
	}
	if err := unpackKernel(deb, p); err != nil {
		return p, err
	}
	return p, os.WriteFile(done, []byte(kernel+"\n"), 0o644)
}

// direct returns the uncompressed kernel, if it is compressed with xz and this machine
// has xz: with emulation, decompression takes as long as the rest of the boot. qemu
// starts such a kernel by its PVH entry.
func direct(kernel string) string {
	bare := kernel + ".elf"
	if exists(bare) {
		return bare
	}
	b, err := os.ReadFile(kernel)
	const offset, length, sectors = 0x248, 0x24c, 0x1f1 // of the payload, and the sectors in front of it
	if err != nil || len(b) < length+4 {
		return kernel
	}
	from := (int64(b[sectors])+1)*512 + int64(binary.LittleEndian.Uint32(b[offset:]))
	to := from + int64(binary.LittleEndian.Uint32(b[length:])) - 4 // followed by its size
	if from >= to || to > int64(len(b)) || !bytes.HasPrefix(b[from:], []byte("\xfd7zXZ\x00")) {
		return kernel
	}
	cmd := exec.Command("xz", "-dc")
	cmd.Stdin = bytes.NewReader(b[from:to])
	elf, err := cmd.Output()
	if err != nil || !bytes.HasPrefix(elf, []byte("\x7fELF")) || os.WriteFile(bare+".new", elf, 0o644) != nil || os.Rename(bare+".new", bare) != nil {
		return kernel
	}
	return bare
}

// kernelPackage returns the package of the current version, on which linux-image-amd64
// depends.
func kernelPackage() (string, error) {
	out, err := exec.Command("apt-cache", "depends", "linux-image-amd64").Output()
	if err != nil {
		return "", &missingError{"linux-image-amd64", "run apt-get update; it requires Debian on amd64"}
	}
	for line := range strings.Lines(string(out)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok && strings.HasPrefix(name, "linux-image-") {
			return name, nil
		}
	}
	return "", &missingError{"the kernel's package", "apt-get update"}
}

func only(dir, pattern string) (string, error) {
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err == nil && len(found) == 0 {
		err = errors.New("nothing was downloaded")
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", pattern, err)
	}
	return found[len(found)-1], nil
}

// unpackKernel extracts the kernel and its modules from a package, which is large.
func unpackKernel(deb string, p parts) error {
	cmd := exec.Command("dpkg-deb", "--fsys-tarfile", deb)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	found := 0
	r := tar.NewReader(out)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%s: %w", deb, err)
		}
		to := ""
		switch name := path.Base(h.Name); {
		case h.Typeflag != tar.TypeReg:
		case strings.HasPrefix(name, "vmlinuz-"):
			to = p.kernel
		case modules[name]:
			to = filepath.Join(p.modules, name)
		}
		if to == "" {
			continue
		}
		b, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if err := os.WriteFile(to, b, 0o644); err != nil {
			return err
		}
		found++
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("dpkg-deb --fsys-tarfile %s: %w", deb, err)
	}
	if found < 4 {
		return fmt.Errorf("%s has only %d of the files that the guest needs", deb, found)
	}
	return nil
}

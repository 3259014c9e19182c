#!/usr/bin/env bash
# release.sh VERSION writes a release to dist: both programs for each platform with their bills of materials, the
# container images, the length estimator, the Helm chart, the notes, and checksums of all. "make release" runs it.
# The same commit gives the same bytes: times are the commit's, owners and orders are fixed.
set -euo pipefail
cd "$(dirname "$0")/../../.."
version=${1:?name a version, such as 0.1.0}
constant=$(sed -n 's/^const Version = "\(.*\)"$/\1/p' cmd/internal/cli/version.go) # a test compares the chart's
[ "$version" = "$constant" ] || { echo "release: cmd/internal/cli/version.go has version $constant, not $version" >&2; exit 1; }
notes=$(awk -v heading="## $version" 'index($0, heading) == 1 { found = 1; next } /^## / { found = 0 } found' CHANGELOG.md)
[ -n "$notes" ] || { echo "release: CHANGELOG.md has no section $version" >&2; exit 1; }
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH CGO_ENABLED=0 GOFLAGS=
go=${GO:-go} dist=$PWD/dist work=$PWD/out/release
rm -rf "$dist" "$work"
mkdir -p "$dist" "$work"
$go build -C cmd/internal/release -o "$work/tool" .

# pack FOLDER FILE... writes files of a folder to standard output as an archive.
pack() {
	tar -C "$1" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=a+rX,go-w -c "${@:2}"
}

cp bin/plugins/cascade-length.wasm "$dist"
for platform in ${PLATFORMS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64}; do
	os=${platform%/*} arch=${platform#*/}
	folder=$work/$os-$arch
	mkdir -p "$folder"
	cp LICENSE "$folder"
	for program in cascade cascade-kube; do
		echo "$platform: $program"
		GOOS=$os GOARCH=$arch $go build -trimpath -buildvcs=true -ldflags='-s -w -buildid=' -o "$folder/$program" "./cmd/$program"
		"$work/tool" bom --version "$version" "$folder/$program" > "$folder/$program.cdx.json"
		[ "$os" = linux ] || continue
		"$work/tool" image --out "$work/image" --arch "$arch" --version "$version" --revision "$(git rev-parse HEAD)" \
			"$folder/$program=/usr/local/bin/$program" bin/plugins/cascade-length.wasm=/usr/share/cascade/cascade-length.wasm > /dev/null
		pack "$work/image" . > "$dist/${program}_${version}_image_${os}_${arch}.tar"
	done
	pack "$folder" . | gzip -n > "$dist/cascade_${version}_${os}_${arch}.tar.gz"
done
pack deploy/helm cascade | gzip -n > "$dist/cascade-chart-$version.tgz"
cat > "$dist/NOTES.md" <<END
# Cascade $version
$notes

## Files

- \`cascade_${version}_OS_ARCH.tar.gz\`: \`cascade\` and \`cascade-kube\`, statically linked, each with its bill of materials in CycloneDX's format. These builds have no device libraries: KV travels over shared memory and TCP. \`deploy/image/Dockerfile\` builds Cascade with CUDA, NVML and RDMA.
- The programs for macOS are built and not tested. KV travels over TCP alone there, because shared memory between processes, GPUs and RDMA need Linux, and orders to a control plane need \`admin_users: ["*"]\`, because Cascade finds the user of a connection on Linux only.
- \`PROGRAM_${version}_image_linux_ARCH.tar\`: container images as OCI layouts: \`skopeo copy oci-archive:FILE docker://REGISTRY/cascade:$version\` pushes one.
- \`cascade-chart-$version.tgz\`: the Helm chart. \`cascade-length.wasm\`: the length estimator for Envoy.
- \`SHA256SUMS\`: check with \`sha256sum -c SHA256SUMS\`.
- With Go alone: \`go install github.com/cascadeinfer/cascade/cmd/cascade@v$version\`.
END
cd "$dist" && sha256sum -- * > "$work/SHA256SUMS" && mv "$work/SHA256SUMS" . && cat SHA256SUMS

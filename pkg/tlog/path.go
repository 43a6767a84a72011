package tlog

import (
	"fmt"
	"strconv"
	"strings"
)

const (
	tileHeight = 8
	tileWidth  = 1 << tileHeight // hashes in a full tile, entries in a full bundle
	maxLevel   = MaxSizeBits / tileHeight

	// CheckpointPath is where the newest checkpoint stands.
	CheckpointPath = "checkpoint"
)

// MaxTileBytes and MaxBundleBytes bound a tile and a bundle of entries.
const (
	MaxTileBytes   = tileWidth * HashSize
	MaxBundleBytes = tileWidth * (2 + MaxEntry)
)

// File names one of the files that a log consists of beside its checkpoint: the hashes [n*256, n*256+Width) of a level of
// tiles, or the entries with these indices.
type File struct {
	Entries bool   // a bundle of entries, and not a tile
	Level   int    // of a tile, from 0; a level up has one hash for each full tile
	N       uint64 // the how manieth of its level, from 0
	Width   int    // from 1 to 256, which is a full one
}

// Path returns where the file stands, relative to the log's root, with slashes.
func (f File) Path() string {
	var b strings.Builder
	b.WriteString("tile/")
	if f.Entries {
		b.WriteString("entries/")
	} else {
		b.WriteString(strconv.Itoa(f.Level) + "/")
	}
	const group = 1000
	digits := fmt.Sprintf("%03d", f.N%group)
	for n := f.N / group; n > 0; n /= group {
		digits = fmt.Sprintf("x%03d/%s", n%group, digits)
	}
	b.WriteString(digits)
	if f.Width < tileWidth {
		b.WriteString(".p/" + strconv.Itoa(f.Width))
	}
	return b.String()
}

// Limit returns how many bytes the file has at most.
func (f File) Limit() int {
	if f.Entries {
		return f.Width * (2 + MaxEntry)
	}
	return f.Width * HashSize
}

// Full returns the full file in the place of f.
func (f File) Full() File {
	f.Width = tileWidth
	return f
}

// ParsePath reads what [File.Path] writes, and nothing else: no path that it takes leads out of the log's directory.
func ParsePath(path string) (f File, ok bool) {
	const longest = 64
	rest, ok := strings.CutPrefix(path, "tile/")
	if !ok || len(path) > longest {
		return File{}, false
	}
	level, rest, ok := strings.Cut(rest, "/")
	if !ok {
		return File{}, false
	}
	f.Width = tileWidth
	if f.Entries = level == "entries"; !f.Entries {
		n, err := strconv.Atoi(level)
		if err != nil || n < 0 || n > maxLevel {
			return File{}, false
		}
		f.Level = n
	}
	if number, width, partial := strings.Cut(rest, ".p/"); partial {
		w, err := strconv.Atoi(width)
		if err != nil || w < 1 || w >= tileWidth {
			return File{}, false
		}
		rest, f.Width = number, w
	}
	for group := range strings.SplitSeq(rest, "/") {
		n, err := strconv.ParseUint(strings.TrimPrefix(group, "x"), 10, 64)
		if err != nil || n >= 1000 || f.N >= MaxSize {
			return File{}, false
		}
		f.N = f.N*1000 + n
	}
	return f, f.Path() == path
}

// filesOf returns the files at the right edge of a log of the size, those that are not full, by level from 0; the bundle
// of entries stands first. Levels without one are left out.
func filesOf(size uint64) []File {
	var files []File
	for level, n := 0, size; n > 0; level, n = level+1, n/tileWidth {
		f := File{Level: level, N: n / tileWidth, Width: int(n % tileWidth)}
		if f.Width == 0 {
			continue
		}
		if level == 0 {
			files = append(files, File{Entries: true, N: f.N, Width: f.Width})
		}
		files = append(files, f)
	}
	return files
}

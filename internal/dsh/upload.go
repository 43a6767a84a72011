package dsh

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime/multipart"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/refold-dev/refold/internal/images"
	"github.com/refold-dev/refold/pkg/objects"
)

// picture is an image's bytes and what they say of themselves.
type picture struct {
	data []byte
	info images.Info
}

func (p *picture) ref() (objects.Ref, error) { return objects.NewRef(p.info.MediaType, p.data) }

// upload is a recorded request that gave an image to the provider.
type upload struct {
	name      string // of its files
	prefix    string // of the attachment's digest
	picture   picture
	fileID    string // empty: it failed
	expiresAt int64  // Unix milliseconds, 0: not known
}

func (u *upload) of(d objects.Digest) bool { return strings.HasPrefix(d.String(), u.prefix) }

// maxPictureBytes bounds a file with an image.
const maxPictureBytes = 64 << 20

const uploadSuffix = ".request.bin"

// readUploads returns the recorded uploads, in order.
func readUploads(fsys fs.FS) ([]upload, error) {
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return nil, fmt.Errorf("recorded uploads: %w", err)
	}
	type numbered struct {
		n    uint64
		name string
	}
	var names []numbered
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), uploadSuffix)
		if n, err := strconv.ParseUint(name, 10, 32); ok && err == nil {
			names = append(names, numbered{n, name})
		}
	}
	slices.SortFunc(names, func(a, b numbered) int { return cmp.Or(cmp.Compare(a.n, b.n), strings.Compare(a.name, b.name)) })
	out := make([]upload, 0, len(names))
	for _, n := range names {
		u, err := readUpload(fsys, n.name)
		if err != nil {
			return nil, fmt.Errorf("recorded upload %s: %w", n.name, err)
		}
		out = append(out, u)
	}
	return out, nil
}

func readUpload(fsys fs.FS, name string) (upload, error) {
	u := upload{name: name}
	body, err := readFile(fsys, name+uploadSuffix)
	if err != nil {
		return u, err
	}
	if u.prefix, u.picture, err = filePart(body); err != nil {
		return u, err
	}
	answer, err := readFile(fsys, name+".response.json")
	if err != nil {
		return u, err
	}
	var a struct {
		ID        loose          `json:"id"`
		ExpiresAt float64        `json:"expires_at"`
		Error     jsontext.Value `json:"error"`
	}
	if err := unmarshal(answer, &a); err != nil {
		return u, fmt.Errorf("its answer: %w", err)
	}
	if len(a.Error) > 0 || a.ID == "" {
		return u, nil
	}
	const perSecond = 1000
	u.fileID, u.expiresAt = string(a.ID), count(a.ExpiresAt*perSecond, new(bool))
	return u, nil
}

// filePart returns the image of a multipart form, and the beginning of its attachment's digest, which its name has.
func filePart(body []byte) (prefix string, p picture, err error) {
	line, _, _ := bytes.Cut(body, []byte("\r\n"))
	boundary, ok := bytes.CutPrefix(line, []byte("--"))
	if !ok {
		return "", p, errors.New("it does not begin with the boundary of a form")
	}
	form := multipart.NewReader(bytes.NewReader(body), string(boundary))
	for {
		part, err := form.NextPart()
		if err != nil {
			return "", p, fmt.Errorf("its form has no file: %w", err)
		}
		if part.FormName() != "file" {
			continue
		}
		m := regexp.MustCompile(`^dsh-([0-9a-f]{16})-`).FindStringSubmatch(part.FileName())
		if m == nil {
			return "", p, fmt.Errorf("file name %q does not have the beginning of a digest", clip(part.FileName()))
		}
		data, err := io.ReadAll(part)
		if err != nil {
			return "", p, fmt.Errorf("its file: %w", err)
		}
		p, err = inspect(data)
		return m[1], p, err
	}
}

func inspect(data []byte) (picture, error) {
	info, err := images.Inspect(data, images.Limits{MaxBytes: maxPictureBytes})
	return picture{data: data, info: info}, err
}

func readFile(fsys fs.FS, name string) ([]byte, error) {
	info, err := fs.Stat(fsys, name) // before opening: opening a pipe would wait
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("no regular file")}
	}
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read from
	data, err := io.ReadAll(io.LimitReader(f, maxPictureBytes+1))
	if err == nil && len(data) > maxPictureBytes {
		err = fmt.Errorf("%s is longer than %d bytes", name, maxPictureBytes)
	}
	return data, err
}

// sentMark stands in the names of files that hold an image as it was sent.
const sentMark = ".sent"

// readAttachments returns the images of a directory that the album has, as they came and as they were sent.
func readAttachments(fsys fs.FS, album []attachment) (came, sent map[objects.Digest]picture, err error) {
	came, sent = make(map[objects.Digest]picture), make(map[objects.Digest]picture)
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return nil, nil, fmt.Errorf("attachments: %w", err)
	}
	for _, e := range entries {
		stem := strings.TrimSuffix(e.Name(), path.Ext(e.Name()))
		into := came
		if path.Ext(e.Name()) == sentMark || path.Ext(stem) == sentMark {
			stem, into = strings.TrimSuffix(stem, sentMark), sent
		}
		digest, err := objects.ParseDigest(stem)
		if err != nil || !slices.ContainsFunc(album, func(a attachment) bool { return a.ref.Digest == digest }) {
			continue
		}
		data, err := readFile(fsys, e.Name())
		if err != nil {
			return nil, nil, fmt.Errorf("attachments: %w", err)
		}
		if _, ok := into[digest]; ok {
			return nil, nil, fmt.Errorf("attachments: %s: there are two files for this image", e.Name())
		}
		p, err := inspect(data)
		if err == nil && objects.Sum(data) != digest && stem+path.Ext(e.Name()) == e.Name() {
			err = fmt.Errorf("its bytes have the digest %s: when they are what was sent of the image, call the file %s%s", objects.Sum(data), stem, sentMark)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("attachments: %s: %w", e.Name(), err)
		}
		into[digest] = p
	}
	return came, sent, nil
}

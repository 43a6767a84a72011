package simulator

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/refold-dev/refold/pkg/events"
)

// File is an uploaded file that is kept.
type File struct {
	ID        string // file-N, N from 1
	Name      string
	MediaType string
	Purpose   string
	Data      []byte
	Created   time.Time
	Expires   time.Time // zero: never
}

// keptFile is a file with what only the simulator needs to know.
type keptFile struct {
	File
	owner unitKey
	sum   [sha256.Size]byte
}

// The bounds of expires_after[seconds], as OpenAI-like services have them.
const (
	minFileSeconds = 3600
	maxFileSeconds = 2_592_000
)

// Files returns the files that are kept, expired ones too, in the order of their uploads, Data shared.
func (s *Simulator) Files() []File {
	s.mu.Lock()
	defer s.mu.Unlock()
	files := make([]File, 0, len(s.files))
	for i := range s.files {
		files = append(files, s.files[i].File)
	}
	return files
}

// DropFiles forgets all files, as a vendor may: requests that name one are refused from now on. Ids are not used
// again.
func (s *Simulator) DropFiles() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files = nil
}

// upload answers an upload and returns the status, 0 when none was given.
func (s *Simulator) upload(w http.ResponseWriter, r *http.Request) int {
	credential, ok := s.credential(r)
	if !ok {
		return writeError(w, http.StatusUnauthorized, badKey, badKeyMessage)
	}
	file, err := readUpload(w, r, s.cfg.Now())
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return writeError(w, http.StatusRequestEntityTooLarge, invalidRequest, "The file is too large")
	case err != nil:
		return writeError(w, http.StatusBadRequest, invalidRequest, err.Error())
	}
	if f := s.uploadFailure(file.Name); f != nil {
		switch f.Kind {
		case FailHTTP:
			return writeFailure(w, f)
		case FailResetBefore:
			s.reset(w, r)
			return 0
		case FailMalformed:
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"id":"file-`) // the client may be gone
			return http.StatusOK
		default: // FailHangBefore
			if hang(r.Context(), f) != nil {
				return 0
			}
		}
	}
	file = s.keep(file, ownerKey(credential, ""))
	b := fmt.Appendf(nil, `{"id":%q,"object":"file","bytes":%d,"created_at":%d`, file.ID, len(file.Data), file.Created.Unix())
	if !file.Expires.IsZero() {
		b = fmt.Appendf(b, `,"expires_at":%d`, file.Expires.Unix())
	}
	b = events.AppendQuote(append(b, `,"filename":`...), events.TextFromBytes([]byte(file.Name)))
	b = append(b, `,"purpose":"user_data","status":"processed"}`...)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b) // the client may be gone
	return http.StatusOK
}

// uploadFailure returns what goes wrong with an upload, nil: nothing. Every rule counts its matches.
func (s *Simulator) uploadFailure(name string) *Failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	var first *Failure
	for i := range s.cfg.Script.Uploads {
		u := &s.cfg.Script.Uploads[i]
		if !strings.Contains(name, string(u.When.Name)) {
			continue
		}
		s.uploads[i]++
		if first == nil && counted(u.When.Nth, u.When.Times, s.uploads[i]) {
			first = &u.Failure
		}
	}
	return first
}

// keep stores a file under a new id and returns it.
func (s *Simulator) keep(file File, owner unitKey) File {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fileIDs++
	file.ID = fmt.Sprintf("file-%d", s.fileIDs)
	s.files = append(s.files, keptFile{File: file, owner: owner, sum: sha256.Sum256(file.Data)})
	return file
}

// resolve looks up the files that a request names and notes their digests. The error is a [*refusal].
func (s *Simulator) resolve(r *chatRequest, credential string) error {
	owner, now := ownerKey(credential, ""), s.cfg.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range r.messages {
		for j := range r.messages[i].images {
			img := &r.messages[i].images[j]
			if img.file == "" {
				continue
			}
			at := slices.IndexFunc(s.files, func(f keptFile) bool { return f.ID == img.file && f.owner == owner })
			if at < 0 || !s.files[at].Expires.IsZero() && !now.Before(s.files[at].Expires) {
				return refusef("messages[%d]: No such File object: %q", i, img.file)
			}
			if kind := imageType(s.files[at].Data); kind == "" {
				return refusef("messages[%d]: File %q is no png, jpeg, gif or webp image", i, img.file)
			}
			img.sum = s.files[at].sum
		}
	}
	return nil
}

// readUpload reads the form of an upload that comes at a time. The error is an [*http.MaxBytesError], or a [*refusal]
// when the form is not as it must be.
func readUpload(w http.ResponseWriter, r *http.Request, now time.Time) (File, error) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	form, err := r.MultipartReader()
	if err != nil {
		return File{}, refusef("Invalid request: %v", err)
	}
	file := File{Created: now}
	var anchor, seconds string
	for {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		var value []byte
		if err == nil {
			value, err = io.ReadAll(part)
		}
		var tooLarge *http.MaxBytesError
		switch {
		case errors.As(err, &tooLarge):
			return File{}, tooLarge
		case err != nil:
			return File{}, refusef("Failed to parse the form: %v", err)
		}
		switch part.FormName() {
		case "purpose":
			file.Purpose = string(value)
		case "expires_after[anchor]":
			anchor = string(value)
		case "expires_after[seconds]":
			seconds = string(value)
		case "file":
			file.Name, file.MediaType, file.Data = part.FileName(), part.Header.Get("Content-Type"), value
		default:
			return File{}, refusef("Invalid request: unknown field %q", part.FormName())
		}
	}
	switch {
	case file.Purpose != "user_data":
		return File{}, refusef("Invalid purpose value %q, want user_data", file.Purpose)
	case file.Name == "" || len(file.Data) == 0:
		return File{}, refusef("Invalid request: file is missing, empty or has no name")
	case anchor == "" && seconds == "":
		return file, nil
	}
	n, err := strconv.ParseInt(seconds, 10, 64)
	if anchor != "created_at" || err != nil || n < minFileSeconds || n > maxFileSeconds {
		return File{}, refusef("Invalid expires_after: want anchor created_at and seconds from %d to %d", minFileSeconds, maxFileSeconds)
	}
	file.Expires = now.Add(time.Duration(n) * time.Second)
	return file, nil
}

package provider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"github.com/refold-dev/refold/internal/provider/lossless"
	"github.com/refold-dev/refold/pkg/events"
)

// fileLife is how long an uploaded file is asked to be kept.
const fileLife = 7 * 24 * time.Hour

// maxUnix bounds the seconds since 1970 that are taken as a time.
const maxUnix = 1 << 40

// maxFileID is the longest file id that is used, in bytes: every request repeats it.
const maxFileID = 256

// Upload is a file to be kept by the provider.
type Upload struct {
	Session   events.ID // that it is for; empty: for none. A file is not an event's, so it names no sequence
	Name      string    // a file name without directories, for the provider's listings
	MediaType string    // such as image/png
	Data      []byte    // not empty; read only
}

// FileID names an uploaded file in requests.
type FileID struct {
	ID string
	// Expires is when the provider forgets the file. After that, and earlier if the provider is not true to its word,
	// requests that name it fail.
	Expires time.Time
}

// Uploader is what adapters implement whose provider keeps files. Safe for concurrent use.
type Uploader interface {
	// Upload sends a file once; it does not retry. The error is an [*Error] with the codes of model calls, of which
	// INVALID_REQUEST means that the provider will not take this file.
	Upload(ctx context.Context, file Upload) (FileID, error)
}

// Upload implements [Uploader] with the files API of OpenAI-like services.
func (d *deepSeek) Upload(ctx context.Context, file Upload) (FileID, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	asked := d.cfg.Now()
	resp, err := d.sendFile(ctx, file)
	if err != nil {
		return FileID{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	if encoded(resp) {
		return FileID{}, d.unexpected(resp, whyEncoded)
	}
	r := idleReader{body: resp.Body, idle: d.cfg.IdleTimeout, cancel: cancel}
	body, err := io.ReadAll(io.LimitReader(&r, maxErrorBody))
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusCreated {
		if err != nil && ctx.Err() != nil {
			return FileID{}, transportFailure(ctx, "read the error response", err, d.cfg.Key)
		}
		return FileID{}, fileFailure(httpFailure(d.cfg.Name, resp, body, d.cfg.Key, d.cfg.Now()))
	}
	if err != nil {
		e := transportFailure(ctx, "read the response", err, d.cfg.Key)
		e.Failure.RequestID = requestID(resp.Header, d.cfg.Key)
		return FileID{}, e
	}
	id, err := parseFile(body, asked)
	if err == nil && d.cfg.Key.scrub(id.ID) != id.ID {
		err = errors.New("a file id that cannot be logged")
	}
	if err != nil {
		if v, ok := parseVendorError(body); ok && bytes.Contains(body, []byte(`"error"`)) {
			e := httpFailure(d.cfg.Name, resp, body, d.cfg.Key, d.cfg.Now())
			e.Failure.Code = v.code(0)
			return FileID{}, fileFailure(e)
		}
		return FileID{}, d.unexpected(resp, d.cfg.Key.clean(err.Error(), maxMessage))
	}
	return id, nil
}

// fileFailure corrects the code of an error response to an upload: no history is shorter than none.
func fileFailure(e *Error) *Error {
	if e.Failure.Code == events.FailureContextWindow {
		e.Failure.Code = events.FailureInvalid
	}
	return e
}

// sendFile sends the request and returns the response. Its error is an [*Error], or nil.
func (d *deepSeek) sendFile(ctx context.Context, file Upload) (*http.Response, error) {
	refused := func(why string) error {
		return &Error{Failure: events.Failure{Message: "the file is not uploaded: " + why, Code: events.FailureInvalid}}
	}
	_, _, badType := mime.ParseMediaType(file.MediaType)
	switch {
	case len(file.Data) == 0:
		return nil, refused("it is empty")
	case file.Name == "" || strings.ContainsAny(file.Name, `/\`) || strings.ContainsFunc(file.Name, isControl):
		return nil, refused("its name is no file name")
	case badType != nil || strings.ContainsFunc(file.MediaType, isControl):
		return nil, refused("its media type is none")
	}
	head, tail, kind, err := fileForm(file)
	if err != nil {
		return nil, refused(err.Error())
	}
	newBody := func() (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(bytes.NewReader(head), bytes.NewReader(file.Data), bytes.NewReader(tail))), nil
	}
	body, _ := newBody()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.cfg.BaseURL+"/files", body)
	if err != nil {
		return nil, transportFailure(ctx, "make the request", err, d.cfg.Key)
	}
	req.GetBody = newBody
	req.ContentLength = int64(len(head)) + int64(len(file.Data)) + int64(len(tail))
	req.Header.Set("Content-Type", kind)
	req.Header.Set("Accept", "application/json")
	if file.Session != "" {
		req.Header.Set(HeaderSession, string(file.Session))
	}
	return d.do(req)
}

func isControl(r rune) bool { return r < ' ' || r == 0x7F }

// fileForm returns what stands before and behind the data in the form that uploads a file, and its content type.
func fileForm(file Upload) (head, tail []byte, kind string, err error) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, field := range [...][2]string{
		{"purpose", "user_data"},
		{"expires_after[anchor]", "created_at"},
		{"expires_after[seconds]", strconv.FormatInt(int64(fileLife/time.Second), 10)},
	} {
		if err := w.WriteField(field[0], field[1]); err != nil {
			return nil, nil, "", err
		}
	}
	_, err = w.CreatePart(textproto.MIMEHeader{
		"Content-Disposition": {multipart.FileContentDisposition("file", file.Name)},
		"Content-Type":        {file.MediaType},
	})
	if err != nil {
		return nil, nil, "", err
	}
	head = bytes.Clone(b.Bytes())
	b.Reset()
	if err := w.Close(); err != nil {
		return nil, nil, "", err
	}
	return head, b.Bytes(), w.FormDataContentType(), nil
}

// parseFile reads the answer to an upload that was asked for at a time.
func parseFile(body []byte, asked time.Time) (FileID, error) {
	file := FileID{Expires: asked.Add(fileLife)}
	dec := lossless.NewDecoder(body)
	err := lossless.Object(dec, func(name string) error {
		var err error
		switch name {
		case "id":
			file.ID, err = lossless.String(dec)
			return err
		case "expires_at":
			var seconds string
			if err = readLoose(dec, &seconds); err != nil {
				return err
			}
			if f, err := strconv.ParseFloat(seconds, 64); err == nil && f >= 1 && f < maxUnix {
				file.Expires = time.Unix(int64(math.Floor(f)), 0)
			}
			return nil
		}
		return dec.SkipValue()
	})
	if err == nil {
		err = lossless.End(dec)
	}
	switch {
	case err != nil:
		return FileID{}, err
	case file.ID == "" || len(file.ID) > maxFileID || strings.ContainsFunc(file.ID, func(r rune) bool { return r <= ' ' || r > '~' }):
		return FileID{}, fmt.Errorf("no file id, or one that is not up to %d visible ASCII characters", maxFileID)
	}
	return file, nil
}

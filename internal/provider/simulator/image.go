package simulator

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/refold-dev/refold/internal/provider/lossless"
)

// image is an image part of a message.
type image struct {
	at   int               // where it stands: the length of the message's text before it
	file string            // the id of a file, "" when the image came in the request
	sum  [sha256.Size]byte // of its bytes; of a file once it is looked up
}

// appendImage renders an image. Its digest stands for what a model sees of it: the same image, uploaded or not, is the
// same prompt.
func appendImage(p []byte, img *image) []byte {
	return hex.AppendEncode(append(p, "<|image|>"...), img.sum[:])
}

// imageType returns the media type of an image's bytes, "" when it is none that the vendor takes.
func imageType(data []byte) string {
	kind := http.DetectContentType(data)
	if slices.Contains([]string{"image/png", "image/jpeg", "image/gif", "image/webp"}, kind) {
		return kind
	}
	return ""
}

// part is a part of a message's content.
type part struct {
	kind, text, file, url    string
	hasText, hasFile, hasURL bool
}

// readPart adds a part to a message.
func (m *message) readPart(dec *jsontext.Decoder) error {
	var p part
	err := lossless.Object(dec, func(name string) (err error) {
		switch name {
		case "type":
			p.kind, err = lossless.String(dec)
		case "text":
			p.hasText = true
			p.text, err = lossless.String(dec)
		case "file_id":
			p.hasFile = true
			p.file, err = lossless.String(dec)
		case "image_url":
			err = lossless.Object(dec, func(name string) (err error) {
				if name != "url" {
					return dec.SkipValue()
				}
				p.hasURL = true
				p.url, err = lossless.String(dec)
				return err
			})
		default:
			err = dec.SkipValue()
		}
		return err
	})
	if err != nil {
		return err
	}
	img := image{at: len(m.content)}
	switch {
	case p.kind == "text" && p.hasText:
		m.content += p.text
		return nil
	case p.kind == "file" && p.hasFile && p.file != "":
		img.file = p.file
	case p.kind == "image_url" && p.hasURL:
		data, err := dataURL(p.url)
		if err != nil {
			return refusef("Invalid image_url: %v", err)
		}
		img.sum = sha256.Sum256(data)
	default:
		return refusef("Invalid request: a content part of type %q: want text with text, file with file_id or image_url with url", p.kind)
	}
	m.images = append(m.images, img)
	return nil
}

// dataURL returns the image in a data URL, whose media type must be the image's.
func dataURL(url string) ([]byte, error) {
	rest, ok := strings.CutPrefix(url, "data:")
	kind, text, based := strings.Cut(rest, ";base64,")
	if !ok || !based {
		return nil, errors.New("want data:MEDIA-TYPE;base64,...; this server fetches nothing")
	}
	data, err := base64.StdEncoding.Strict().DecodeString(text)
	switch {
	case err != nil:
		return nil, err
	case imageType(data) == "":
		return nil, errors.New("no png, jpeg, gif or webp image")
	case imageType(data) != kind:
		return nil, errors.New("the media type is not that of the image")
	}
	return data, nil
}

// countImages returns how many images a request has.
func (r *chatRequest) countImages() int {
	n := 0
	for i := range r.messages {
		n += len(r.messages[i].images)
	}
	return n
}

// resultImages is how the message begins that brings the images of the tool results before it, which tool messages
// cannot hold.
const resultImages = "Attached image(s) from tool result:"

// bringsResults reports whether a message belongs to the tool results before it although it is a user message.
func (r *chatRequest) bringsResults(i int) bool {
	m := &r.messages[i]
	return i > 0 && m.role == "user" && len(m.images) > 0 && r.messages[i-1].role == "tool" && strings.HasPrefix(m.content, resultImages)
}

package provider

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/refold-dev/refold/internal/provider/lossless"
	"github.com/refold-dev/refold/pkg/events"
)

const (
	maxMessage    = 2 << 10   // bytes of a failure's message from outside
	maxErrorBody  = 256 << 10 // bytes of an error response that are read
	maxRequestID  = 128
	maxRetryAfter = 365 * 24 * time.Hour // longer requests of a provider count as this
)

// vendorError is an error as OpenAI-like services write it: {"error":{"message","type","code"}}, {"error":"text"} or
// the members at the top.
type vendorError struct {
	message string
	kind    string // type
	word    string // code, a string or a number
}

// parseVendorError reports whether body is JSON that holds an error.
func parseVendorError(body []byte) (vendorError, bool) {
	var v vendorError
	dec := lossless.NewDecoder(body)
	var member func(name string) error
	member = func(name string) error {
		switch name {
		case "error":
			if dec.PeekKind() == '{' {
				return lossless.Object(dec, member)
			}
			return readLoose(dec, &v.message)
		case "message":
			return readLoose(dec, &v.message)
		case "type":
			return readLoose(dec, &v.kind)
		case "code":
			return readLoose(dec, &v.word)
		}
		return dec.SkipValue()
	}
	if lossless.Object(dec, member) != nil {
		return vendorError{}, false
	}
	return v, v != vendorError{}
}

// readLoose reads a string, or a number in its digits; anything else counts as absent.
func readLoose(dec *jsontext.Decoder, dst *string) error {
	v, err := dec.ReadValue()
	if err != nil || len(v) == 0 {
		return err
	}
	switch c := v[0]; {
	case c == '"':
		*dst, err = events.Unquote(v)
	case c == '-' || c >= '0' && c <= '9':
		*dst = string(v)
	}
	return err
}

// code classifies the error of a response with an HTTP status; 0: an event in a stream that had begun well.
func (v vendorError) code(status int) events.FailureCode {
	if n, err := strconv.Atoi(v.word); err == nil && status == 0 && n >= 400 && n <= 599 {
		status = n
	}
	words := strings.ToLower(v.kind + " " + v.word)
	message := strings.ToLower(v.message)
	switch status {
	case 0, http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge, http.StatusTooManyRequests:
		if c := wordCode(words, message, status); c != "" {
			return c
		}
	}
	return statusCode(status)
}

// wordCode classifies by what the vendor wrote, "" when that says nothing.
func wordCode(words, message string, status int) events.FailureCode {
	has := func(s string, parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(s, p) {
				return true
			}
		}
		return false
	}
	switch {
	case has(words, "context_length", "context_window") || has(message, "context length", "context window",
		"prompt is too long", "input is too long", "too many input tokens", "exceeds the maximum number of tokens"):
		return events.FailureContextWindow
	case has(words, "insufficient_quota", "insufficient_balance", "quota_exceeded", "billing") ||
		has(message, "insufficient balance", "exceeded your current quota"):
		return events.FailureQuota
	case has(words, "content_filter", "content_policy") || has(message, "content exists risk"):
		return events.FailureContentFilter
	case status != 0: // the status says the rest better
		return ""
	case has(words, "rate_limit", "too_many_requests"):
		return events.FailureRateLimit
	case has(words, "authentication", "invalid_api_key", "permission"):
		return events.FailureCredential
	case has(words, "timeout"):
		return events.FailureTimeout
	case has(words, "invalid_request"):
		return events.FailureInvalid
	}
	return ""
}

func statusCode(status int) events.FailureCode {
	switch status {
	case 0:
		return events.FailureServer
	case http.StatusUnauthorized, http.StatusForbidden:
		return events.FailureCredential
	case http.StatusPaymentRequired:
		return events.FailureQuota
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return events.FailureTimeout
	case http.StatusRequestEntityTooLarge: // a shorter history helps, as with a full context window
		return events.FailureContextWindow
	case http.StatusTooManyRequests:
		return events.FailureRateLimit
	}
	switch {
	case status >= 500:
		return events.FailureServer
	case status >= 300:
		return events.FailureInvalid
	}
	return events.FailureMalformed
}

// httpFailure describes a response that is no answer. body is what was read of it.
func httpFailure(name string, resp *http.Response, body []byte, secret Secret, now time.Time) *Error {
	v, _ := parseVendorError(body)
	f := events.Failure{
		Message:      secret.clean(v.message, maxMessage),
		Code:         v.code(resp.StatusCode),
		Status:       int64(resp.StatusCode),
		RetryAfterMs: retryAfter(resp.Header, now).Milliseconds(),
		RequestID:    requestID(resp.Header, secret),
	}
	if strings.TrimSpace(f.Message) == "" {
		f.Message = fmt.Sprintf("%s answered with HTTP status %d", name, resp.StatusCode)
		if resp.StatusCode >= 300 && resp.StatusCode < 400 {
			f.Message += "; redirects are not followed: correct the base URL"
		}
	}
	return &Error{Failure: f}
}

// retryAfter returns how long the provider asks to wait, in whole milliseconds within [0, maxRetryAfter].
func retryAfter(h http.Header, now time.Time) time.Duration {
	if ms, err := strconv.ParseFloat(strings.TrimSpace(h.Get("Retry-After-Ms")), 64); err == nil {
		return boundWait(ms)
	}
	value := strings.TrimSpace(h.Get("Retry-After"))
	if s, err := strconv.ParseFloat(value, 64); err == nil {
		return boundWait(s * 1000)
	}
	if at, err := http.ParseTime(value); err == nil {
		return boundWait(float64(at.Sub(now)) / float64(time.Millisecond))
	}
	return 0
}

func boundWait(ms float64) time.Duration {
	switch most := float64(maxRetryAfter.Milliseconds()); {
	case !(ms > 0): // a NaN too
		return 0
	case ms > most:
		return maxRetryAfter
	}
	return time.Duration(math.Ceil(ms)) * time.Millisecond
}

// requestID returns the id under which the provider knows the request.
func requestID(h http.Header, secret Secret) string {
	for _, name := range [...]string{"X-Request-Id", "Request-Id", "X-Ds-Trace-Id", "X-Amzn-Requestid"} {
		if id := strings.TrimSpace(h.Get(name)); id != "" {
			return secret.clean(id, maxRequestID)
		}
	}
	return ""
}

// errIdle is the cause of a request cancelled by [idleReader].
var errIdle = errors.New("no byte of the answer came within the idle timeout")

// transportFailure describes an error of the connection, or the cancellation of ctx. what says what was being done.
func transportFailure(ctx context.Context, what string, err error, secret Secret) *Error {
	cause := context.Cause(ctx)
	code := events.FailureTransport
	var bodyErr *BodyError
	switch {
	case errors.As(err, &bodyErr):
		code, err = events.FailurePrepared, bodyErr
	case errors.Is(cause, errIdle):
		code, err = events.FailureTimeout, cause
	case errors.Is(cause, context.DeadlineExceeded):
		code, err = events.FailureTimeout, cause
	case cause != nil:
		code, err = events.FailureCancelled, cause
	case isTimeout(err):
		code = events.FailureTimeout
	}
	if urlErr, ok := errors.AsType[*url.Error](err); ok { // its text repeats method and URL
		err = urlErr.Err
	}
	err = secret.scrubError(err)
	return &Error{
		Failure: events.Failure{Message: secret.clean(what+": "+err.Error(), maxMessage), Code: code},
		Err:     err,
	}
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

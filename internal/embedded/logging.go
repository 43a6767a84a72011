package embedded

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/nats-io/nats-server/v2/server"
)

// slogAdaptor is the server's logger. The server's notices, such as those of every start, are debug messages here.
type slogAdaptor struct{ log *slog.Logger }

var _ server.Logger = (*slogAdaptor)(nil)

const logMessage = "NATS server"

func text(format string, args []any) slog.Attr {
	return slog.String("text", strings.TrimSpace(fmt.Sprintf(format, args...)))
}

func (a *slogAdaptor) Noticef(format string, v ...any) { a.log.Debug(logMessage, text(format, v)) }
func (a *slogAdaptor) Warnf(format string, v ...any)   { a.log.Warn(logMessage, text(format, v)) }
func (a *slogAdaptor) Fatalf(format string, v ...any)  { a.log.Error(logMessage, text(format, v)) }
func (a *slogAdaptor) Errorf(format string, v ...any)  { a.log.Error(logMessage, text(format, v)) }
func (a *slogAdaptor) Debugf(format string, v ...any)  { a.log.Debug(logMessage, text(format, v)) }
func (a *slogAdaptor) Tracef(format string, v ...any)  { a.log.Debug(logMessage, text(format, v)) }

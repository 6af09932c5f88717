package extproc

import (
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/kvsteer/kvsteer/envoy"
	"github.com/kvsteer/kvsteer/internal/router"
)

// pin tells the engine the data-parallel rank of a decision that is to be obeyed and has one. All attempts of the request carry the header, at
// whatever endpoint. A decision without a rank touches nothing: the header is the client's own then.
func pin(r *response, d router.Decision) {
	if !d.Pinned || !d.Steers() {
		return
	}
	c := r.GetRequestHeaders().GetResponse()
	if c == nil {
		c = r.GetRequestBody().GetResponse()
	}
	if m := c.GetHeaderMutation(); m != nil {
		m.SetHeaders = append(m.SetHeaders, &corev3.HeaderValueOption{
			Header:       &corev3.HeaderValue{Key: envoy.HeaderRank, RawValue: strconv.AppendInt(nil, int64(d.Rank), 10)},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		})
	}
}

package verbs

// call is a function of the library: its index in calls and in CV_CALLS of shim.h.
type call int

const (
	getDeviceList call = iota
	freeDeviceList
	getDeviceName
	openDevice
	closeDevice
	queryDevice
	queryPort
	queryGID
	queryGIDEx
	allocPD
	deallocPD
	regMR
	regDMABuf
	deregMR
	createChannel
	destroyChannel
	createCQ
	destroyCQ
	getCQEvent
	ackCQEvents
	createQP
	modifyQP
	destroyQP
	getAsyncEvent
	ackAsyncEvent
	statusText
	eventText
	postSend
	pollCQ
	requestNotify
	callCount
)

// calls are the names of the functions. The last three are inline functions of the
// library's header: they have no symbol, but an entry in the context's table.
var calls = [callCount]string{
	"ibv_get_device_list", "ibv_free_device_list", "ibv_get_device_name", "ibv_open_device", "ibv_close_device",
	"ibv_query_device", "ibv_query_port", "ibv_query_gid", "_ibv_query_gid_ex",
	"ibv_alloc_pd", "ibv_dealloc_pd", "ibv_reg_mr", "ibv_reg_dmabuf_mr", "ibv_dereg_mr",
	"ibv_create_comp_channel", "ibv_destroy_comp_channel", "ibv_create_cq", "ibv_destroy_cq", "ibv_get_cq_event", "ibv_ack_cq_events",
	"ibv_create_qp", "ibv_modify_qp", "ibv_destroy_qp", "ibv_get_async_event", "ibv_ack_async_event",
	"ibv_wc_status_str", "ibv_event_type_str",
	"ibv_post_send", "ibv_poll_cq", "ibv_req_notify_cq",
}

// optional are the functions that older libraries lack.
var optional = map[call]bool{queryGIDEx: true, regDMABuf: true}

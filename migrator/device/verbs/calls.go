package verbs

// call is a function of the library: its index in CV_CALLS of shim.h, which has the names. The last three are inline
// functions of the library's header: they have no symbol, but an entry in the context's table.
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

// optional are the functions that older libraries lack.
var optional = map[call]bool{queryGIDEx: true, regDMABuf: true}

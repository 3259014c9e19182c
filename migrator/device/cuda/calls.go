package cuda

// call is a function of the driver: its index in calls and in CS_CALLS of shim.h.
type call int

const (
	cuInit call = iota
	cuDriverGetVersion
	cuDeviceGetCount
	cuDeviceGet
	cuDeviceGetName
	cuDeviceGetUUID
	cuDeviceGetPCIBusID
	cuDeviceTotalMem
	cuDeviceGetAttribute
	cuDeviceCanAccessPeer
	cuDevicePrimaryCtxRetain
	cuDevicePrimaryCtxRelease
	cuCtxSetCurrent
	cuCtxGetStreamPriorityRange
	cuMemAlloc
	cuMemFree
	cuMemGetAddressRange
	cuMemHostAlloc
	cuMemFreeHost
	cuMemHostGetDevicePointer
	cuMemHostRegister
	cuMemHostUnregister
	cuIpcGetMemHandle
	cuIpcOpenMemHandle
	cuIpcCloseMemHandle
	cuMemGetAllocationGranularity
	cuMemCreate
	cuMemRelease
	cuMemExportToShareableHandle
	cuMemImportFromShareableHandle
	cuMemAddressReserve
	cuMemAddressFree
	cuMemMap
	cuMemUnmap
	cuMemSetAccess
	cuMemGetHandleForAddressRange
	cuStreamCreateWithPriority
	cuStreamDestroy
	cuStreamSynchronize
	cuEventCreate
	cuEventDestroy
	cuEventRecord
	cuEventQuery
	cuEventSynchronize
	cuEventElapsedTime
	cuMemcpyDtoDAsync
	cuMemcpyHtoDAsync
	cuMemcpyDtoHAsync
	cuMemsetD8Async
	cuMemcpyBatchAsyncV2
	cuMemcpyBatchAsync
	cuModuleLoadData
	cuModuleUnload
	cuModuleGetFunction
	cuLaunchKernel
	cuGetErrorName
	callCount
)

// calls are the symbols, with the version suffix of the prototype that the shim declares.
var calls = [callCount]string{
	"cuInit", "cuDriverGetVersion",
	"cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetUuid_v2", "cuDeviceGetPCIBusId", "cuDeviceTotalMem_v2",
	"cuDeviceGetAttribute", "cuDeviceCanAccessPeer",
	"cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", "cuCtxSetCurrent", "cuCtxGetStreamPriorityRange",
	"cuMemAlloc_v2", "cuMemFree_v2", "cuMemGetAddressRange_v2",
	"cuMemHostAlloc", "cuMemFreeHost", "cuMemHostGetDevicePointer_v2", "cuMemHostRegister_v2", "cuMemHostUnregister",
	"cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle",
	"cuMemGetAllocationGranularity", "cuMemCreate", "cuMemRelease",
	"cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemAddressFree",
	"cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemGetHandleForAddressRange",
	"cuStreamCreateWithPriority", "cuStreamDestroy_v2", "cuStreamSynchronize",
	"cuEventCreate", "cuEventDestroy_v2", "cuEventRecord", "cuEventQuery", "cuEventSynchronize", "cuEventElapsedTime",
	"cuMemcpyDtoDAsync_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemsetD8Async",
	"cuMemcpyBatchAsync_v2", "cuMemcpyBatchAsync",
	"cuModuleLoadData", "cuModuleUnload", "cuModuleGetFunction", "cuLaunchKernel", "cuGetErrorName",
}

// optional are the functions that older drivers lack.
var optional = map[call]bool{cuMemcpyBatchAsyncV2: true, cuMemcpyBatchAsync: true, cuMemGetHandleForAddressRange: true}
